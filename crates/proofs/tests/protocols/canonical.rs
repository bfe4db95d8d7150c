//! States that differ only by the time, by numbers that grow, or by the names of clients are one state.
//!
//! A state is written as words. Times are written relative to the present, and all that is long past is the same. Of numbers that
//! are only compared, such as tokens, the place in their order is written. Of counts whose differences alone matter, what they are
//! above the least. What has no effect any more is not written.

use crate::remote::backend::Session;
use crate::time::Instant;

/// Numbers that are only compared with others of their kind, and of their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of the grants of a session.
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
    /// The store's clock, in microseconds; its last token, and whether another server may be behind that.
    clock: u64,
    token: u64,
    forgets: bool,
    /// By the number of a client, the number that it is written as.
    names: Vec<u64>,
    writes: bool,
    /// Numbers by kind and owner, and units by session, as [`packed`].
    known: Vec<u64>,
    least: Vec<u64>,
    words: Vec<u64>,
}

impl Words {
    /// The least words of what `visit` visits at the instant `now`, in nanoseconds, with one of these orders of names.
    ///
    /// The store's clock is at `clock`, in microseconds. `token` is its last one, which it `forgets` if a fault is to come.
    pub(crate) fn least(
        now: u64,
        clock: u64,
        (token, forgets): (u64, bool),
        orders: &[Vec<u64>],
        visit: impl Fn(&mut Self),
    ) -> Vec<u64> {
        let mut words = Self {
            now,
            clock,
            token,
            forgets,
            names: orders[0].clone(),
            words: Vec::with_capacity(256),
            ..Self::default()
        };
        visit(&mut words);
        words.known.sort_unstable();
        words.known.dedup();
        words.least.sort_unstable();
        words.writes = true;
        let written = orders.iter().map(|names| {
            words.names.clone_from(names);
            visit(&mut words);
            std::mem::replace(&mut words.words, Vec::with_capacity(256))
        });
        written.min().unwrap_or_default()
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
        self.plain(from.max(-PAST) as u64);
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

    /// Of what holds something up until it is due, if it is set.
    pub(crate) fn until(&mut self, at: Option<Instant>) {
        self.due(at.unwrap_or_default());
    }

    pub(crate) fn name(&self, client: u64) -> u64 {
        self.names[client as usize]
    }

    /// The words of what `visit` visits, which are not written.
    pub(crate) fn apart(&mut self, visit: impl FnOnce(&mut Self)) -> Vec<u64> {
        let before = std::mem::take(&mut self.words);
        visit(self);
        std::mem::replace(&mut self.words, before)
    }

    pub(crate) fn client(&mut self, client: u64) {
        self.plain(self.name(client));
    }

    pub(crate) fn session(&mut self, session: Session) {
        self.client(session.client);
        self.number(Kind::Session, session.client, session.number);
    }

    /// Orders what belongs to sessions, by the names of the clients.
    pub(crate) fn sort<T>(&self, sessions: &mut [(&Session, T)]) {
        sessions.sort_by_key(|(session, _)| (self.name(session.client), session.number));
    }

    /// A number of `kind`, which is compared only with others of this owner; zero is none.
    pub(crate) fn number(&mut self, kind: Kind, owner: u64, number: u64) {
        if self.writes {
            self.bound(kind, owner, number);
        } else if number > 0 {
            self.known.push(packed(kind as u64, owner, number));
        }
    }

    /// A number that those of `kind` are compared with: how many there are up to it.
    pub(crate) fn bound(&mut self, kind: Kind, owner: u64, number: u64) {
        if self.writes && number > 0 {
            let first = self
                .known
                .partition_point(|known| *known <= packed(kind as u64, owner, 0));
            let place = self
                .known
                .partition_point(|known| *known <= packed(kind as u64, owner, number));
            self.plain((place - first) as u64);
        } else {
            self.plain(0);
        }
    }

    /// The token of a grant to a session.
    pub(crate) fn token(&mut self, session: Session, token: u64) {
        self.number(Kind::Token, owner(session), token);
        self.beside_the_store(token);
    }

    /// The last token that a session has seen.
    pub(crate) fn seen(&mut self, session: Session, token: u64) {
        self.bound(Kind::Token, owner(session), token);
        self.flag(token > 0);
        self.beside_the_store(token);
    }

    /// What a token is above the store's last one, which it may have forgotten; the next one is at least the present instant.
    fn beside_the_store(&mut self, token: u64) {
        let now = self.clock;
        let is_above = token > self.token;
        self.flag(is_above);
        self.plain(match is_above {
            true => token.saturating_sub(self.token.max(now - 1)),
            false if self.forgets => (token + 1).saturating_sub(now),
            false => 0,
        });
    }

    /// A count of units of a session.
    pub(crate) fn units(&mut self, session: Session, units: u64) {
        let of = |units| packed(0, owner(session), units);
        if !self.writes {
            return self.least.push(of(units));
        }
        let at = self.least.partition_point(|known| *known < of(0));
        self.plain(of(units) - self.least[at]);
    }
}

/// A number of a kind and an owner as one word, in their order.
fn packed(kind: u64, owner: u64, number: u64) -> u64 {
    let (client, session) = (owner >> 32, owner & 0xffff_ffff);
    assert!(
        client < 1 << 8 && session < 1 << 12 && number < 1 << 40,
        "no model has that many"
    );
    kind << 60 | client << 52 | session << 40 | number
}

/// The number of the owner of what belongs to a session.
pub(crate) fn owner(session: Session) -> u64 {
    session.client << 32 | session.number
}
