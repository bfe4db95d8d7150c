//! Permits in the slots of Consul.

#[path = "../../../../tollgate-stores/src/consul/slots/changes.rs"]
mod changes;
#[path = "../../../../tollgate-stores/src/consul/slots/view.rs"]
mod view;

use super::keys::Keys;
use super::kv::{Entry, Op};
use super::world::{self, Answer, Layout, Next, World};
use crate::search::are_alike;
use changes::{Place, ops, ops_of_leaving};
use std::collections::BTreeSet;
use tollgate::remote::{Session, SyncRequest};
use view::{Change, View};

/// As many as the library allows.
const MOST: u64 = 60;
/// Sessions with fewer others than this before them look again by themselves.
const LOOKOUTS: usize = 3;

#[derive(Clone, Debug)]
struct Slots;

type Process = world::Process<Seen>;

/// What was read.
#[derive(Clone, Debug)]
struct Seen {
    view: View,
    /// The session lived then.
    lived: bool,
}

impl Seen {
    fn change(&self, process: &Process, sync: &SyncRequest, limit: u64) -> Option<(Vec<Op>, Change)> {
        let mut change = self.view.next(sync, limit, &process.id, process.overtaken)?;
        // Two in a row differ, and those of two sessions.
        let nonce = || format!("{}.{}", process.id, process.writes % 2);
        change.life.nonce = nonce();
        let ops = ops(&Place(String::new()), &change, process.session, &process.id, nonce());
        Some((ops.expect("numbers are JSON"), change))
    }
}

fn slots(keys: &Keys) -> impl Iterator<Item = &Entry> {
    keys.entries.values().filter(|entry| entry.key.starts_with("at/"))
}

impl Layout for Slots {
    type View = Seen;

    fn read(keys: &Keys, process: &Process) -> Seen {
        let lived = !process.lapsed;
        let ours = Some(&*process.id).filter(|_| lived);
        let name = process.session.to_string();
        let view = View::of(&keys.list(), keys.index, "", &name, ours).expect("it is ours");
        Seen { view, lived }
    }

    fn next(seen: &Seen, process: &Process, sync: &SyncRequest, limit: u64) -> Next {
        let Seen { view, lived } = seen;
        let (reply, place) = if sync.end {
            if let Some(leaving) = view.leaving(&process.id) {
                let place = Place(String::new());
                return Next::Write(ops_of_leaving(&place, &leaving, process.session, &process.id));
            }
            (view.reply(sync, limit, None), None)
        } else if *lived && (view.is_there() || process.begins) {
            if let Some((ops, _)) = seen.change(process, sync, limit) {
                return Next::Write(ops);
            }
            (view.reply(sync, limit, Some(&process.id)), view.place())
        } else {
            (view.reply(sync, limit, None), None)
        };
        Next::Reply(Answer {
            reply,
            watches: place.map(|_| process.saw),
            looks: place.is_some_and(|ahead| ahead < LOOKOUTS),
        })
    }

    fn written(seen: &mut Seen, process: &Process, sync: &SyncRequest, limit: u64, index: u64) -> bool {
        if sync.end {
            seen.view.leave(&process.id);
            return true;
        }
        let change = seen.change(process, sync, limit);
        let change = change.map(|(_, change)| change).filter(|change| !change.lowers);
        let goes_on = change.is_some();
        if let Some(change) = change {
            seen.view.apply(change, &process.id, index);
        }
        goes_on
    }

    fn changed(before: &Keys, after: &Keys, ops: &[Op]) -> bool {
        let indexes = |keys| {
            slots(keys)
                .map(|entry| (entry.key.clone(), entry.index))
                .collect::<Vec<_>>()
        };
        indexes(before) != indexes(after) || ops.iter().any(|op| format!("{op:?}").contains("at/bell"))
    }

    fn latest(_: &Keys, changed: u64, _: Session) -> u64 {
        changed
    }

    fn limit(keys: &Keys) -> Option<u64> {
        let entry = keys.entries.get("at/limit")?;
        let value: serde_json::Value = serde_json::from_slice(&entry.value).expect("it is ours");
        value["limit"].as_u64()
    }

    fn units(keys: &Keys, of: Option<(Session, &str)>) -> u64 {
        let taken = keys.taken().into_iter();
        taken
            .filter(|entry| of.is_none_or(|(_, id)| entry.session.as_deref() == Some(id)))
            .count() as u64
    }

    fn tokens(keys: &Keys) -> BTreeSet<u64> {
        keys.taken().into_iter().map(|entry| entry.index).collect()
    }

    fn may_stay(key: &str, _: bool) -> bool {
        key == "at/limit"
    }

    fn text(_: &str, value: &[u8]) -> String {
        String::from_utf8_lossy(value).into_owned()
    }

    /// A session's last write decides where it takes slots.
    const WRITES_COUNT: bool = true;
}

fn survives(name: &str, needs: &[(u64, u8)], lowered: Option<u64>, ends: usize, faults: u8) {
    world::survives::<Slots>(name, World::new(needs, lowered, ends, faults));
}

#[test]
fn states_of_slots_that_are_taken_for_one_are_alike() {
    let world = |ends, faults| World::<Slots>::new(&[(1, 1), (2, 1)], None, ends, faults);
    are_alike("slots, two sessions that end, no fault", &world(2, 0));
    are_alike("slots, two sessions, one fault", &world(0, 1));
}

#[test]
fn two_sessions_of_slots_survive_a_fault() {
    survives("slots, two sessions, one fault", &[(1, 1), (2, 1)], None, 0, 1);
}

#[test]
fn sessions_of_slots_that_end_at_once_leave_nothing() {
    survives("slots, two sessions that end, no fault", &[(1, 1), (2, 1)], None, 2, 0);
}

#[test]
fn an_end_beside_a_session_of_slots_survives_a_fault() {
    survives(
        "slots, two sessions, one of which ends, one fault",
        &[(2, 1), (2, 1)],
        None,
        1,
        1,
    );
}

#[test]
fn a_lowered_limit_beside_slots_that_are_taken_survives() {
    survives(
        "slots, a limit that is lowered, no fault",
        &[(1, 1), (1, 1)],
        Some(1),
        0,
        0,
    );
}

/// The first session is there before its second request, which may begin at the slot above the lowered limit.
#[test]
fn a_lowered_limit_counts_a_slot_above_it_that_is_taken_meanwhile() {
    survives(
        "slots, a limit that is lowered, one session asks twice, no fault",
        &[(1, 2), (1, 1)],
        Some(1),
        0,
        0,
    );
}

#[test]
#[ignore = "takes minutes"]
fn a_lowered_limit_beside_slots_that_are_taken_survives_a_fault() {
    survives(
        "slots, a limit that is lowered, one fault",
        &[(1, 1), (1, 1)],
        Some(1),
        0,
        1,
    );
}

#[test]
fn a_session_of_slots_that_holds_one_and_asks_for_another_takes_no_slot_twice() {
    survives(
        "slots, two sessions, one of which asks twice, no fault",
        &[(1, 2), (1, 1)],
        None,
        0,
        0,
    );
}

#[test]
fn a_session_of_slots_that_asks_twice_survives_a_fault() {
    survives("slots, one session that asks twice, one fault", &[(1, 2)], None, 0, 1);
}

#[test]
#[ignore = "takes minutes"]
fn sessions_of_slots_that_hold_and_ask_again_survive_a_fault() {
    survives(
        "slots, two sessions, one of which asks twice, one fault",
        &[(1, 2), (1, 1)],
        None,
        0,
        1,
    );
}

#[test]
#[ignore = "takes minutes"]
fn sessions_of_slots_that_end_survive_a_fault() {
    survives("slots, two sessions that end, one fault", &[(1, 1), (2, 1)], None, 2, 1);
}

#[test]
#[ignore = "takes minutes"]
fn two_sessions_of_slots_survive_two_faults() {
    survives("slots, two sessions, two faults", &[(1, 1), (2, 1)], None, 0, 2);
}
