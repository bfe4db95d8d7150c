//! The permits of a key as a document, for stores that keep documents and know nothing of permits.
//!
//! Sessions do not expire by themselves in it: the store says which of them it knows no more, and they are ended.

use super::Outcome;
use super::note::session;
use super::permits::{Held, Permits, Queued};
use crate::remote::backend::{Grant, Session, Step};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All that is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sheet {
    limit: u64,
    token: u64,
    next_place: u64,
    sessions: BTreeMap<String, Line>,
    /// By place: the session, its wish, how many it needs and wants.
    queue: BTreeMap<u64, (String, u64, u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    seq: u64,
    granted: u64,
    returned: u64,
    asked: u64,
    keeps: bool,
    /// The token of the oldest grant of which something is held; zero for none.
    oldest: u64,
    /// Those that the client has not seen: the wish, the units, the token.
    grants: Vec<(u64, u64, u64)>,
}

impl Sheet {
    /// What a step without a word to say changes in it anyway, changed already: so that two of them that are equal after it need
    /// not both be written.
    pub(crate) fn heard(&mut self, step: &Step) {
        if let Some(line) = self.sessions.get_mut(&step.session.to_string()) {
            line.seq = line.seq.max(step.seq);
            line.grants.retain(|&(_, _, token)| token > step.seen);
            let unseen = line.grants.first().map(|&(_, _, token)| token);
            line.oldest = step.oldest.or(unseen).unwrap_or(0);
        }
    }
}

impl Permits {
    pub(crate) fn to_sheet(&self) -> Sheet {
        let line = |held: &Held| Line {
            seq: held.seq,
            granted: held.granted,
            returned: held.returned,
            asked: held.asked,
            keeps: held.keeps,
            oldest: held.oldest.unwrap_or(0),
            grants: held
                .grants
                .iter()
                .map(|grant| (grant.wish, grant.units, grant.token))
                .collect(),
        };
        let queued = |queued: &Queued| (queued.session.to_string(), queued.wish, queued.need, queued.want);
        Sheet {
            limit: self.limit,
            token: self.token,
            next_place: self.next_place,
            sessions: self
                .sessions
                .iter()
                .map(|(session, held)| (session.to_string(), line(held)))
                .collect(),
            queue: self
                .queue
                .iter()
                .map(|(&place, entry)| (place, queued(entry)))
                .collect(),
        }
    }

    /// `None` when it contradicts itself, or counts further than anybody has, as none does that was made here.
    pub(crate) fn of_sheet(sheet: &Sheet) -> Option<Self> {
        let lines = sheet.sessions.values().flat_map(|line| [line.granted, line.asked]);
        let wishes = sheet
            .queue
            .values()
            .flat_map(|&(_, wish, need, want)| [wish, need, want]);
        let mut numbers = [sheet.limit, sheet.token, sheet.next_place]
            .into_iter()
            .chain(lines)
            .chain(wishes);
        if numbers.any(|number| number > FARTHEST) {
            return None;
        }
        let mut permits = Self::new(sheet.limit, sheet.token);
        permits.next_place = sheet.next_place;
        for (name, line) in &sheet.sessions {
            let session = session(name)?;
            permits.used = permits.used.checked_add(line.granted.checked_sub(line.returned)?)?;
            permits.dues.insert((NEVER, session));
            let grants = line
                .grants
                .iter()
                .map(|&(wish, units, token)| Grant { wish, units, token });
            let held = Held {
                expires: NEVER,
                seq: line.seq,
                granted: line.granted,
                returned: line.returned,
                asked: line.asked,
                grants: grants.collect(),
                queued: 0,
                keeps: line.keeps,
                oldest: Some(line.oldest).filter(|&token| token > 0),
            };
            permits.oldest.extend(held.oldest);
            permits.sessions.insert(session, held);
        }
        for (&place, (name, wish, need, want)) in &sheet.queue {
            let session = session(name)?;
            permits.sessions.get_mut(&session)?.queued += 1;
            let (wish, need, want) = (*wish, *need, *want);
            let new = permits.places.insert((session, wish), place).is_none();
            if !new || place >= permits.next_place {
                return None;
            }
            let entry = Queued {
                session,
                wish,
                need,
                want,
            };
            permits.queue.insert(place, entry);
        }
        Some(permits)
    }

    /// Carries out `step` where sessions do not expire by themselves. `version` grows with each change of the store, and so do
    /// tokens, which are as great at least. Such a store forgets nothing, and may leave a step unwritten that changes nothing.
    pub(crate) fn step_of_version(&mut self, version: u64, step: &Step) -> Outcome {
        let step = Step {
            ttl: Duration::MAX,
            heard: 0,
            ..step.clone()
        };
        self.step(version, &step)
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = Session> + '_ {
        self.sessions.keys().copied()
    }

    /// Ends sessions that the store knows no more. What they held is granted with the next step.
    pub(crate) fn bury(&mut self, dead: &[Session]) {
        dead.iter().for_each(|&session| self.end(session));
    }

    /// Whether the session is among the first so many in the queue, however many wishes each of them has there.
    pub(crate) fn is_near(&self, session: Session, sessions: usize) -> bool {
        let mut near = BTreeSet::new();
        for queued in self.queue.values() {
            near.insert(queued.session);
            if near.len() > sessions || queued.session == session {
                return near.len() <= sessions && queued.session == session;
            }
        }
        false
    }

    /// Whether the session waits for anything, or keeps what others may want.
    pub(crate) fn wants_news(&self, session: Session) -> bool {
        let held = self.sessions.get(&session);
        held.is_some_and(|held| held.queued > 0 || held.keeps)
    }
}

const NEVER: u64 = u64::MAX;
/// Nobody has counted as far: what comes on top of it is a number still.
const FARTHEST: u64 = u64::MAX >> 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::backend::{Reply, Wish};

    fn step(client: u64, seq: u64) -> Step {
        Step {
            seq,
            begin: seq == 1,
            ..Step::first(Session { client, number: 1 }, Duration::from_secs(1))
        }
    }

    fn wish(client: u64, seq: u64, need: u64) -> Step {
        let (id, want, queue) = (seq, need, true);
        let wishes = vec![Wish { id, need, want, queue }];
        Step {
            wishes,
            ..step(client, seq)
        }
    }

    /// The same steps, with a document between any two of them: what comes of them is the same, and so is the document.
    #[test]
    fn a_document_remembers_everything() {
        let mut steps = vec![
            wish(1, 1, 2),
            wish(u64::MAX, 1, 2),
            wish(3, 1, 1),
            wish(1, 2, 1),
            step(3, 2),
        ];
        steps.push(Step {
            returned: 2,
            seen: 10,
            keeps: true,
            ..step(1, 3)
        });
        steps.push(Step {
            withdrawn: vec![2],
            limit: Some(5),
            ..step(1, 4)
        });
        steps.push(Step {
            end: true,
            ..step(3, 3)
        });
        let mut kept = Permits::new(3, 7);
        let mut sheet = kept.to_sheet();
        for (version, step) in (10..).zip(&steps) {
            let mut read = Permits::of_sheet(&sheet).expect("what was written can be read");
            let (one, other) = (kept.step_of_version(version, step), read.step_of_version(version, step));
            assert_eq!((&one.reply, &one.told), (&other.reply, &other.told));
            sheet = serde_json::from_str(&serde_json::to_string(&read.to_sheet()).unwrap()).unwrap();
            assert_eq!(sheet, kept.to_sheet());
        }
        assert_eq!(kept.token(), 16, "{kept:?}");
    }

    #[test]
    fn the_dead_leave_what_they_held_to_the_next() {
        let mut book = Permits::new(1, 0);
        book.step_of_version(1, &wish(1, 1, 1));
        book.step_of_version(2, &wish(2, 1, 1));
        let waits = Session { client: 2, number: 1 };
        assert!(book.is_near(waits, 1) && book.wants_news(waits));
        book.bury(&[Session { client: 1, number: 1 }]);
        let Reply { grants, census, .. } = book.step_of_version(3, &step(2, 2)).reply;
        assert_eq!((grants.len(), census.sessions), (1, 1));
        assert!(!book.wants_news(waits));
    }

    /// One with many wishes is one who may be gone.
    #[test]
    fn who_is_near_is_counted_by_sessions() {
        let mut book = Permits::new(1, 0);
        for (seq, client) in [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 3)] {
            book.step_of_version(1, &wish(client, seq, 1));
        }
        let near = |client| book.is_near(Session { client, number: 1 }, 2);
        assert_eq!([1, 2, 3, 4].map(near), [true, true, false, false]);
    }

    #[test]
    fn a_step_that_says_nothing_new_changes_nothing_that_counts() {
        let mut book = Permits::new(1, 0);
        let token = book.step_of_version(1, &wish(1, 1, 1)).reply.grants[0].token;
        let hears = Step {
            seen: token,
            ..step(1, 2)
        };
        let mut before = book.to_sheet();
        book.step_of_version(2, &hears);
        assert_ne!(before, book.to_sheet());
        before.heard(&hears);
        assert_eq!(before, book.to_sheet());
    }

    #[test]
    fn what_contradicts_itself_is_no_document() {
        let mut book = Permits::new(1, 0);
        book.step_of_version(1, &wish(1, 1, 1));
        book.step_of_version(2, &wish(2, 1, 1));
        let good = serde_json::to_string(&book.to_sheet()).unwrap();
        let read = |text: &str| {
            let sheet: Option<Sheet> = serde_json::from_str(text).ok();
            sheet.and_then(|sheet| Permits::of_sheet(&sheet))
        };
        assert!(read(&good).is_some());
        for (from, to) in [
            ("\"returned\":0", "\"returned\":2"),
            ("0000000000000002.1\",1,1,1", "0000000000000005.1\",1,1,1"),
            ("\"next_place\":2", "\"next_place\":1"),
            ("0000000000000001.1", "1.1"),
            ("\"limit\"", "\"limits\""),
            ("\"next_place\":2", "\"next_place\":18446744073709551615"),
            ("\"token\":1", "\"token\":18446744073709551615"),
        ] {
            assert_ne!(good, good.replace(from, to), "{from} in {good}");
            assert!(read(&good.replace(from, to)).is_none(), "{from} {to}");
        }
    }
}
