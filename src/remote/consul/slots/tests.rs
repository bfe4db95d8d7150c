//! Sessions that read and write in any order, over keys that behave as Consul's do: late writes, lost answers, deaths.

use super::super::seats::Seats;
use super::view::{Change, View};
use super::{Place, ops, ops_of_leaving};
use crate::remote::backend::{Session, Step, Wish};
use crate::remote::consul::agent::Op;
use crate::remote::consul::model::Keys;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct Client {
    id: String,
    step: Step,
    wishes: u64,
    /// What it has been told of: by token the wish and the units.
    granted: BTreeMap<u64, (u64, u64)>,
    /// What it has read, and goes by.
    view: Option<View>,
    overtaken: bool,
}

impl Client {
    fn new(number: u64) -> Self {
        let session = Session {
            client: number,
            number: 1,
        };
        let step = Step {
            seq: 0,
            ..Step::first(session, Duration::from_secs(1))
        };
        Self {
            id: format!("session-{number}"),
            step,
            wishes: 0,
            granted: BTreeMap::new(),
            view: None,
            overtaken: false,
        }
    }

    fn held(&self) -> u64 {
        self.granted.values().map(|&(_, units)| units).sum::<u64>() - self.step.returned
    }

    fn read(&mut self, keys: &Keys) {
        let name = self.step.session.to_string();
        let view = View::of(&keys.list(), keys.index, "", &name, Some(&self.id));
        self.view = Some(view.expect("it is ours"));
    }

    /// What it writes to end; `None` when it is gone.
    fn end(&mut self, keys: &Keys) -> Option<Vec<Op>> {
        self.read(keys);
        let leaving = self.view.as_ref()?.leaving(&self.id)?;
        let place = Place(String::new());
        Some(ops_of_leaving(&place, &leaving, self.step.session, &self.id))
    }

    /// What it writes next; `None` when there is nothing to be written.
    fn write(&self, seats: &Seats, limit: u64) -> Option<(Change, Vec<Op>)> {
        let mut change = self.view.as_ref()?.next(&self.step, limit, &self.id, self.overtaken)?;
        change.life.nonce = seats.nonce();
        let place = Place(String::new());
        let ops = ops(&place, &change, self.step.session, &self.id, seats).unwrap();
        Some((change, ops))
    }

    /// Takes a step in which `say` says something, and hears the answer.
    fn say(&mut self, keys: &mut Keys, seats: &Seats, say: impl FnOnce(&mut Step)) {
        self.step.seq += 1;
        say(&mut self.step);
        self.read(keys);
        while let Some((change, ops)) = self.write(seats, LIMIT) {
            let written = keys.change(&ops).expect("nobody is in the way");
            self.view.as_mut().unwrap().apply(change, &self.id, written);
        }
        self.hear(&mut BTreeSet::new());
    }

    fn wish(&mut self, keys: &mut Keys, seats: &Seats, need: &[u64]) {
        for &need in need {
            self.wishes += 1;
            let (id, want, queue) = (self.wishes, need, true);
            self.step.wishes.push(Wish { id, need, want, queue });
        }
        self.say(keys, seats, |_| {});
    }

    /// Says something new. What may not have been heard is said again.
    fn speak(&mut self, random: &mut Random, resizes: bool) {
        self.step.seq += 1;
        match random.below(8) {
            0..=3 => {
                self.wishes += 1;
                let need = 1 + random.below(3);
                let (id, want, queue) = (self.wishes, need + random.below(2), random.below(4) > 0);
                self.step.wishes.push(Wish { id, need, want, queue });
            }
            4..=5 if self.held() > 0 => self.step.returned += 1 + random.below(self.held()),
            6 if self.wishes > 0 => self.step.withdrawn.push(1 + random.below(self.wishes)),
            7 if resizes || random.below(4) == 0 => self.step.limit = Some(random.below(7)),
            _ => {}
        }
    }

    /// Hears the answer to what it said.
    fn hear(&mut self, tokens: &mut BTreeSet<u64>) {
        let view = self.view.take().expect("it has read");
        let reply = view.reply(&self.step, LIMIT, Some(&self.id));
        assert!(reply.alive);
        for grant in reply.grants {
            assert!(grant.token > self.step.seen && tokens.insert(grant.token), "{grant:?}");
            let twice = self.granted.values().any(|&(wish, _)| wish == grant.wish);
            assert!(!twice, "{grant:?}");
            self.step.seen = grant.token;
            self.granted.insert(grant.token, (grant.wish, grant.units));
        }
        self.step.begin = false;
        self.step.wishes.clear();
        self.step.withdrawn.clear();
        self.step.limit = None;
        self.overtaken = false;
    }
}

const LIMIT: u64 = 4;

fn run(seed: u64, actions: u64, resizes: bool) -> usize {
    let (mut random, seats, place) = (Random(seed), Seats::of_seed(seed), Place(String::new()));
    let (mut keys, mut tokens, mut late) = (Keys::default(), BTreeSet::new(), Vec::<Vec<Op>>::new());
    let mut names = 0..;
    let mut clients: Vec<_> = (0..4).map(|_| Client::new(names.next().unwrap())).collect();
    let commit = |keys: &mut Keys, ops: &[Op]| {
        let before = keys.taken().len();
        let written = keys.change(ops);
        let taken = keys.taken().len();
        let limit = keys.entries.get("at/limit").map_or(0, |entry| {
            serde_json::from_slice::<Value>(&entry.value).unwrap()["limit"]
                .as_u64()
                .unwrap()
        });
        assert!(
            taken <= before || taken as u64 <= limit,
            "{taken} of {limit}, and {before} before"
        );
        written
    };
    for _ in 0..actions {
        let which = random.below(4) as usize;
        let client = &mut clients[which];
        if random.below(80) == 0 {
            keys.die(&client.id);
            *client = Client::new(names.next().unwrap());
        } else if random.below(40) == 0 {
            // It ends, in one attempt or two, of which one may come later.
            for _ in 0..2 {
                let Some(ops) = client.end(&keys) else { continue };
                if random.below(2) == 0 {
                    late.push(ops);
                } else {
                    commit(&mut keys, &ops);
                }
            }
            keys.die(&client.id);
            *client = Client::new(names.next().unwrap());
        } else if let Some(ops) = (random.below(20) == 0).then(|| late.pop()).flatten() {
            commit(&mut keys, &ops);
        } else if client.view.is_none() {
            client.speak(&mut random, resizes);
            client.read(&keys);
        } else if let Some(mut change) =
            client
                .view
                .as_ref()
                .unwrap()
                .next(&client.step, LIMIT, &client.id, client.overtaken)
        {
            change.life.nonce = seats.nonce();
            let ops = ops(&place, &change, client.step.session, &client.id, &seats).unwrap();
            match random.below(10) {
                // It gives up, and what it wrote comes later, or is done and not heard of.
                0 => {
                    late.push(ops);
                    client.view = None;
                }
                1 => {
                    commit(&mut keys, &ops);
                    client.view = None;
                }
                _ => match commit(&mut keys, &ops) {
                    Some(_) if change.lowers => client.read(&keys),
                    Some(written) => client.view.as_mut().unwrap().apply(change, &client.id, written),
                    None => {
                        client.overtaken = true;
                        client.read(&keys);
                    }
                },
            }
        } else {
            client.hear(&mut tokens);
        }
        for client in &clients {
            let has = keys
                .taken()
                .iter()
                .filter(|entry| entry.session.as_deref() == Some(&*client.id))
                .count();
            let returning = client.view.is_some() || client.step.returned > 0;
            assert!(has as u64 >= client.held() || returning, "{} of {}", has, client.held());
        }
    }
    for mut client in clients {
        if let Some(ops) = client.end(&keys) {
            commit(&mut keys, &ops).expect("nobody is in the way");
        }
    }
    for ops in late {
        // Whoever wrote it has ended.
        keys.change(&ops);
    }
    tokens.len()
}

#[test]
fn whatever_the_order_slots_are_held_once() {
    let granted: usize = (0..100).map(|seed| run(seed, 400, false)).sum();
    assert!(granted > 1_000, "{granted}");
}

#[test]
fn whatever_the_order_limits_hold_that_change() {
    let granted: usize = (0..600).map(|seed| run(seed, 80, true)).sum();
    assert!(granted > 1_000, "{granted}");
}

#[test]
fn what_does_not_fit_one_write_is_written_by_two() {
    let (seats, place, mut keys) = (Seats::of_seed(1), Place(String::new()), Keys::default());
    let mut client = Client::new(1);
    for (wish, returned) in [(1, 0), (2, 60)] {
        client.step.seq += 1;
        client.step.returned = returned;
        client.step.wishes = vec![Wish {
            id: wish,
            need: 60,
            want: 60,
            queue: true,
        }];
        client.read(&keys);
        let mut writes = 0;
        while let Some(mut change) = client.view.as_ref().unwrap().next(&client.step, 60, &client.id, false) {
            change.life.nonce = seats.nonce();
            let ops = ops(&place, &change, client.step.session, &client.id, &seats).unwrap();
            let written = keys.change(&ops).unwrap();
            client.view.as_mut().unwrap().apply(change, &client.id, written);
            writes += 1;
        }
        assert_eq!((writes, keys.taken().len()), (wish, 60));
        client.hear(&mut BTreeSet::new());
    }
}

/// Whoever lowers a limit has read before another took a slot above it.
#[test]
fn a_limit_that_is_lowered_counts_what_was_taken_meanwhile() {
    let (seats, place) = (Seats::of_seed(1), Place(String::new()));
    // Where each of them begins to take.
    for (one, other) in (0..6).flat_map(|one| (0..6).map(move |other| (one, other))) {
        let mut keys = Keys::default();
        let mut clients = [Client::new(1), Client::new(2)];
        // Writes what the client would write next, with this nonce, which says where the write after it begins to take.
        let write = |client: &mut Client, keys: &mut Keys, nonce: String| {
            let mut change = client.view.as_ref()?.next(&client.step, 6, &client.id, false)?;
            change.life.nonce = nonce;
            let ops = ops(&place, &change, client.step.session, &client.id, &seats).unwrap();
            let written = keys.change(&ops);
            match written {
                Some(written) if !change.lowers => client.view.as_mut()?.apply(change, &client.id, written),
                _ => client.read(keys),
            }
            Some(())
        };
        for (client, begin) in clients.iter_mut().zip([one, other]) {
            client.step.seq = 1;
            client.read(&keys);
            write(client, &mut keys, format!("{begin}")).unwrap();
        }
        let [lowers, takes] = &mut clients;
        lowers.read(&keys);
        takes.read(&keys);
        for (client, limit, need) in [(&mut *takes, None, 4), (&mut *lowers, Some(3), 1)] {
            client.step.seq = 2;
            client.step.limit = limit;
            client.step.wishes = vec![Wish {
                id: 1,
                need,
                want: need,
                queue: true,
            }];
            for _ in 0..4 {
                write(client, &mut keys, "later".to_owned());
            }
        }
        assert_eq!(keys.taken().len(), 4, "of 3, from {one} and {other} on");
    }
}

/// The answer to an end was late, so that it was said again: one of the two comes when others hold what it gave back.
#[test]
fn an_end_that_comes_late_ends_nothing_else() {
    let (seats, mut keys) = (Seats::of_seed(1), Keys::default());
    let [mut leaves, mut other, mut third] = [1, 2, 3].map(Client::new);
    // Somebody stays, so that nobody takes the limit along.
    third.say(&mut keys, &seats, |_| {});
    leaves.wish(&mut keys, &seats, &[4]);
    let late = leaves.end(&keys).unwrap();
    let again = leaves.end(&keys).unwrap();
    keys.change(&again).expect("nobody is in the way");
    other.wish(&mut keys, &seats, &[4]);
    assert_eq!((other.held(), keys.taken().len()), (4, 4));
    keys.change(&late);
    assert_eq!(keys.taken().len(), 4, "the other's");
}

/// A limit that was set, and set back before the first was carried out: the first comes later.
#[test]
fn a_step_that_comes_late_does_nothing_though_the_one_after_it_had_nothing_to_change() {
    let (seats, mut keys) = (Seats::of_seed(1), Keys::default());
    let mut client = Client::new(1);
    client.wish(&mut keys, &seats, &[1]);
    client.step.seq += 1;
    client.step.limit = Some(9);
    client.read(&keys);
    let (_, late) = client.write(&seats, LIMIT).unwrap();
    client.say(&mut keys, &seats, |step| step.limit = Some(LIMIT));
    assert_eq!(keys.change(&late), None);
    // A wish that was withdrawn before it was known.
    client.step.seq += 1;
    let wish = |id| Wish {
        id,
        need: 1,
        want: 1,
        queue: true,
    };
    client.step.wishes.push(wish(2));
    client.read(&keys);
    let (_, late) = client.write(&seats, LIMIT).unwrap();
    client.say(&mut keys, &seats, |step| {
        step.wishes.clear();
        step.withdrawn.push(2);
    });
    assert_eq!(keys.change(&late), None);
}

/// They are counted each, and those behind leave room for one.
#[test]
fn equal_wishes_of_one_step_are_left_room_for_one_by_one() {
    let (seats, mut keys) = (Seats::of_seed(1), Keys::default());
    let [mut holds, mut waits, mut behind] = [1, 2, 3].map(Client::new);
    holds.wish(&mut keys, &seats, &[LIMIT]);
    waits.wish(&mut keys, &seats, &[1, 1]);
    behind.read(&keys);
    let census = behind.view.as_ref().unwrap().reply(&behind.step, LIMIT, None).census;
    assert_eq!(census.waiting, 2);
    holds.say(&mut keys, &seats, |step| step.returned = 2);
    behind.wish(&mut keys, &seats, &[1, 1]);
    assert_eq!(behind.held(), 1);
    waits.say(&mut keys, &seats, |_| {});
    assert_eq!(waits.held(), 1);
}

/// Each of the last two sees the other, so that neither takes the limit along.
#[test]
fn the_last_two_that_end_at_once_leave_nothing() {
    let (seats, mut keys) = (Seats::of_seed(1), Keys::default());
    let mut clients = [Client::new(1), Client::new(2)];
    for client in &mut clients {
        client.wish(&mut keys, &seats, &[1]);
    }
    let ends = clients.each_mut().map(|client| client.end(&keys).unwrap());
    for (client, ops) in clients.iter_mut().zip(ends) {
        // Whoever was overtaken reads again.
        if keys.change(&ops).is_none() {
            let again = client.end(&keys).unwrap();
            keys.change(&again).expect("nobody is in the way");
        }
    }
    assert_eq!(keys.list(), []);
}

/// Those who come at one time are not all in each other's way.
#[test]
fn newcomers_begin_at_slots_of_their_own() {
    let (seats, mut first) = (Seats::of_seed(1), BTreeSet::new());
    for number in 0..20 {
        let mut client = Client::new(number);
        let (id, need, want, queue) = (1, 1, 1, true);
        client.step.seq = 1;
        client.step.wishes = vec![Wish { id, need, want, queue }];
        client.read(&Keys::default());
        first.extend(client.write(&seats, 20).unwrap().0.locked);
    }
    assert!(first.len() > 5, "{first:?}");
}

#[test]
fn numbers_that_nobody_wrote_are_refused() {
    let lives = r#"{"nonce":"","seq":1,"returned":0,"asked":1,"pending":[{"wish":1,"need":61,"want":61,"since":1}]}"#;
    for (key, value) in [("at/limit", r#"{"limit":61,"nonce":""}"#), ("by/1.1", lives)] {
        let mut keys = Keys::default();
        keys.change(&[Op::lock(key, value.as_bytes(), "somebody")]).unwrap();
        let refused = View::of(&keys.list(), keys.index, "", "", None).unwrap_err();
        assert!(refused.to_string().contains(key), "{refused}");
    }
}

/// A document of holders has no slots, and is not to be one more limiter under the same key.
#[test]
fn other_keys_are_no_slots() {
    let mut keys = Keys::default();
    keys.change(&[Op::cas("holders", b"{}", 0)]).unwrap();
    let refused = View::of(&keys.list(), keys.index, "", "", None).unwrap_err();
    assert!(refused.to_string().contains("holders"), "{refused}");
}
