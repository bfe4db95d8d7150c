//! States that differ only by the time, by numbers that grow, or by the names of clients are one state.
//!
//! A state is written as words. Times are written relative to the present, and all that is long past is the same. Of numbers that
//! are only compared, such as tokens, the place in their order is written. Of counts whose differences alone matter, what they are
//! above the least.

use crate::remote::backend::Session;
use crate::time::Instant;

/// Numbers that are only compared with others of their kind, and of their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Token,
    Term,
    /// The numbers of sessions of a client.
    Session,
    /// The numbers of syncs in a session.
    Seq,
    Request,
    /// Waits in a process.
    Wait,
}

/// What is past for this long, in nanoseconds, is past for all purposes: no model has a longer time.
const PAST: i64 = 4_000;

/// The words of a state: gathered in a first pass, written in a second.
#[derive(Debug, Default)]
pub(crate) struct Words {
    now: u64,
    /// By the number of a client, the number that it is written as.
    names: Vec<u64>,
    writes: bool,
    known: Vec<(Kind, u64, u64)>,
    least: Vec<(Session, u64)>,
    words: Vec<u64>,
}

impl Words {
    /// The words of what `visit` visits at the instant `now`, in nanoseconds.
    pub(crate) fn of(now: u64, names: Vec<u64>, visit: impl Fn(&mut Self)) -> Vec<u64> {
        let mut words = Self {
            now,
            names,
            ..Self::default()
        };
        visit(&mut words);
        words.known.sort_unstable();
        words.known.dedup();
        words.least.sort_unstable();
        words.least.dedup_by_key(|(session, _)| *session);
        words.writes = true;
        visit(&mut words);
        words.words
    }

    pub(crate) fn plain(&mut self, number: u64) {
        if self.writes {
            self.words.push(number);
        }
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.plain(flag.into());
    }

    pub(crate) fn at(&mut self, at: Instant) {
        let from = i64::try_from(at.ticks()).unwrap_or(i64::MAX) - self.now as i64;
        self.plain(from.max(-PAST).cast_unsigned());
    }

    /// Of what has no effect once it is due.
    pub(crate) fn due(&mut self, at: Instant) {
        self.at(at.max(Instant::from_ticks(self.now)));
    }

    /// Of what has no effect once it is due, if it is set.
    pub(crate) fn maybe(&mut self, at: Option<Instant>) {
        self.flag(at.is_some());
        if let Some(at) = at {
            self.due(at);
        }
    }

    pub(crate) fn client(&mut self, client: u64) {
        self.plain(self.names[client as usize]);
    }

    pub(crate) fn session(&mut self, session: Session) {
        self.client(session.client);
        self.number(Kind::Session, session.client, session.number);
    }

    /// Orders what belongs to sessions, by the names of the clients.
    pub(crate) fn sort<T>(&self, sessions: &mut [(&Session, T)]) {
        sessions.sort_by_key(|(session, _)| (self.names[session.client as usize], session.number));
    }

    /// A number of `kind`, which is compared only with others of this owner; zero is none.
    pub(crate) fn number(&mut self, kind: Kind, owner: u64, number: u64) {
        if !self.writes {
            self.known.push((kind, owner, number));
            return;
        }
        if number == 0 {
            return self.plain(0);
        }
        if kind == Kind::Token {
            // The next token is at least the present instant.
            self.plain(number.saturating_sub(self.now / 1_000));
        }
        let first = self.known.partition_point(|known| *known < (kind, owner, 1));
        let place = self.known.partition_point(|known| *known < (kind, owner, number));
        self.plain((place - first + 1) as u64);
    }

    /// A count of units of a session.
    pub(crate) fn units(&mut self, session: Session, units: u64) {
        if !self.writes {
            self.least.push((session, units));
            return;
        }
        let at = self.least.binary_search_by_key(&session, |(of, _)| *of);
        self.plain(units - at.map_or(0, |at| self.least[at].1));
    }
}

/// The number of the owner of what belongs to a session.
pub(crate) fn owner(session: Session) -> u64 {
    session.client << 32 | session.number
}
