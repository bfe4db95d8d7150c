//! Permits in a document of Consul.

#[path = "../../../../tollgate-stores/src/consul/holders/view.rs"]
mod view;

use super::keys::Keys;
use super::kv::{Entry, Op};
use super::world::{self, Answer, Layout, Next, World};
use crate::search::are_alike;
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use tollgate::remote::{Session, SyncRequest};
use view::{Place, Plan, View};

#[derive(Clone, Debug)]
struct Document;

type Process = world::Process<Seen>;

/// What was read, and written since.
#[derive(Clone)]
struct Seen {
    entries: Vec<Entry>,
    last: u64,
    /// The session lived then.
    lived: bool,
    /// The write that has made an empty document.
    created: Option<u64>,
    /// The sync is written.
    done: Option<Answer>,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entries,
            last,
            lived,
            created,
            done,
        } = self;
        // Once it is written, what was read has no effect any more.
        if let Some(done) = done {
            return write!(f, "{done:?}");
        }
        write!(f, "{last}{lived}{created:?}")?;
        entries.iter().try_for_each(|entry| {
            let text = Document::text(&entry.key, &entry.value);
            write!(f, "{}={text}@{}{:?};", entry.key, entry.index, entry.session)
        })
    }
}

fn place() -> Place {
    Place(String::new())
}

impl Seen {
    fn view(&self, limit: u64) -> View {
        let view = View::of(&place(), self.entries.clone(), self.last, limit);
        let mut view = view.expect("it is ours");
        if let Some(index) = self.created {
            view.created(index);
        }
        view
    }

    /// The next write, and what is heard once it is done, with whether the session comes by it; nothing after that of an empty document.
    fn plan(&self, process: &Process, sync: &SyncRequest, limit: u64) -> (Vec<Op>, Option<(Answer, bool)>) {
        let mut view = self.view(limit);
        let id = Some(&*process.id).filter(|_| self.lived);
        let made = Cell::new(0);
        let nonce = || {
            made.set(made.get() + 1);
            format!("{}.{}.{}", process.id, process.writes, made.get())
        };
        if let Some(ops) = view.create(&place(), sync, id, &nonce).expect("it is short") {
            return (ops, None);
        }
        let Plan { reply, comes, ops, .. } = view.plan(&place(), sync, id, &nonce).expect("it is short");
        let wants = reply.alive && view.wants_news(sync.session);
        let answer = Answer {
            watches: process.watches.or(wants.then(|| view.life(sync.session))),
            looks: reply.alive && view.looks_out(sync.session),
            reply,
        };
        (ops, Some((answer, comes)))
    }
}

/// The document.
fn document(value: &[u8]) -> Value {
    let mut value: Value = serde_json::from_slice(value).expect("it is ours");
    value["permits"].take()
}

fn permits(keys: &Keys) -> Option<Value> {
    keys.entries.get("holders").map(|entry| document(&entry.value))
}

fn sessions(permits: &Option<Value>) -> impl Iterator<Item = (&String, &Value)> {
    permits
        .iter()
        .filter_map(|permits| permits["sessions"].as_object())
        .flatten()
}

impl Layout for Document {
    type View = Seen;

    fn read(keys: &Keys, process: &Process) -> Seen {
        Seen {
            entries: keys.list(),
            last: keys.index,
            lived: !process.lapsed,
            created: None,
            done: None,
        }
    }

    fn next(seen: &Seen, process: &Process, sync: &SyncRequest, limit: u64) -> Next {
        if let Some(answer) = &seen.done {
            return Next::Reply(answer.clone());
        }
        match seen.plan(process, sync, limit) {
            (ops, Some((answer, _))) if ops.is_empty() => Next::Reply(answer),
            (ops, _) => Next::Write(ops),
        }
    }

    fn written(seen: &mut Seen, process: &Process, sync: &SyncRequest, limit: u64, index: u64) -> bool {
        match seen.plan(process, sync, limit).1 {
            None => seen.created = Some(index),
            Some((mut answer, comes)) => {
                if comes && process.watches.is_none() {
                    answer.watches = answer.watches.map(|_| index);
                }
                seen.done = Some(answer);
            }
        }
        true
    }

    /// Each watches its own key.
    fn changed(_: &Keys, _: &Keys, _: &[Op]) -> bool {
        false
    }

    /// Its key is deleted with the session.
    fn latest(keys: &Keys, _: u64, session: Session) -> u64 {
        let life = keys.entries.get(&place().life(session));
        life.map_or(keys.index, |entry| entry.index)
    }

    fn limit(keys: &Keys) -> Option<u64> {
        permits(keys)?["limit"].as_u64()
    }

    fn units(keys: &Keys, of: Option<(Session, &str)>) -> u64 {
        let lives = |name: &str| keys.entries.contains_key(&format!("by/{name}"));
        let permits = permits(keys);
        let counted = sessions(&permits)
            .filter(|(name, _)| lives(name) && of.is_none_or(|(session, _)| session.to_string() == **name));
        let number = |held: &Value, field: &str| held[field].as_u64().expect("a number");
        counted
            .map(|(_, held)| number(held, "granted") - number(held, "returned"))
            .sum()
    }

    fn tokens(keys: &Keys) -> BTreeSet<u64> {
        let permits = permits(keys);
        let grants = sessions(&permits).filter_map(|(_, held)| held["grants"].as_array());
        grants.flatten().filter_map(|grant| grant[2].as_u64()).collect()
    }

    fn may_stay(key: &str, cleans: bool) -> bool {
        key == "holders" && !cleans
    }

    /// Nonces are never the same twice, and of the places in the queue only the order matters.
    fn text(key: &str, value: &[u8]) -> String {
        if key != "holders" {
            return String::new();
        }
        let mut permits = document(value);
        let queue = permits["queue"].take();
        let queue = queue.as_object().expect("a queue");
        let mut queue: Vec<_> = queue
            .iter()
            .map(|(place, queued)| (place.parse::<u64>().expect("a place"), queued))
            .collect();
        queue.sort_unstable_by_key(|(place, _)| *place);
        let queue: Vec<_> = queue.into_iter().map(|(_, queued)| queued.to_string()).collect();
        permits["next_place"].take();
        format!("{permits}{queue:?}")
    }

    const WRITES_COUNT: bool = false;
}

fn survives(name: &str, needs: &[(u64, u8)], lowered: Option<u64>, ends: usize, faults: u8) {
    world::survives::<Document>(name, World::new(needs, lowered, ends, faults));
}

#[test]
fn states_of_a_document_that_are_taken_for_one_are_alike() {
    let world = |ends, faults| World::<Document>::new(&[(1, 1), (2, 1)], None, ends, faults);
    are_alike("document, two sessions that end, no fault", &world(2, 0));
    are_alike("document, two sessions, one fault", &world(0, 1));
}

#[test]
fn two_sessions_of_a_document_survive_a_fault() {
    survives("document, two sessions, one fault", &[(1, 1), (2, 1)], None, 0, 1);
}

#[test]
fn sessions_of_a_document_that_end_at_once_leave_nothing() {
    survives(
        "document, two sessions that end, no fault",
        &[(1, 1), (2, 1)],
        None,
        2,
        0,
    );
}

#[test]
fn a_lowered_limit_of_a_document_is_that_of_all_sessions() {
    survives(
        "document, a limit that is lowered, no fault",
        &[(1, 1), (1, 1)],
        Some(1),
        0,
        0,
    );
}

#[test]
fn a_session_of_a_document_that_asks_twice_survives_a_fault() {
    survives(
        "document, one session that asks twice, one fault",
        &[(1, 2)],
        None,
        0,
        1,
    );
}

#[test]
#[ignore = "takes minutes"]
fn an_end_beside_a_session_of_a_document_survives_a_fault() {
    survives(
        "document, two sessions, one of which ends, one fault",
        &[(2, 1), (2, 1)],
        None,
        1,
        1,
    );
}

#[test]
#[ignore = "takes minutes"]
fn a_lowered_limit_of_a_document_survives_a_fault() {
    survives(
        "document, a limit that is lowered, one fault",
        &[(1, 1), (1, 1)],
        Some(1),
        0,
        1,
    );
}

#[test]
#[ignore = "takes minutes"]
fn two_sessions_of_a_document_survive_two_faults() {
    survives("document, two sessions, two faults", &[(1, 1), (2, 1)], None, 0, 2);
}

#[test]
#[ignore = "takes minutes"]
fn three_sessions_of_a_document_survive_without_a_fault() {
    survives(
        "document, three sessions, no fault",
        &[(1, 1), (1, 1), (2, 1)],
        None,
        0,
        0,
    );
}

#[test]
#[ignore = "takes minutes"]
fn three_sessions_of_a_document_survive_a_fault() {
    survives(
        "document, three sessions, one fault",
        &[(1, 1), (1, 1), (2, 1)],
        None,
        0,
        1,
    );
}
