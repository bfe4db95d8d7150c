//! Sessions that read and write in any order, over keys that behave as Consul's do: late writes, lost answers, deaths.

use super::super::sessions::ConsulSessions;
use super::changes::{Place, ops, ops_of_leaving};
use super::view::{Change, View};
use crate::consul::api::Op;
use crate::consul::tests::Keys;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tollgate::remote::{Request, Session, SyncRequest};

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
    sync: SyncRequest,
    requests: u64,
    /// The grants that it knows: by token the request and the units.
    granted: BTreeMap<u64, (u64, u64)>,
    /// Its last view.
    view: Option<View>,
    overtaken: bool,
}

impl Client {
    fn new(number: u64) -> Self {
        let session = Session {
            client: number,
            number: 1,
        };
        let sync = SyncRequest {
            seq: 0,
            ..SyncRequest::first(session, Duration::from_secs(1))
        };
        Self {
            id: format!("session-{number}"),
            sync,
            requests: 0,
            granted: BTreeMap::new(),
            view: None,
            overtaken: false,
        }
    }

    fn held(&self) -> u64 {
        self.granted.values().map(|&(_, units)| units).sum::<u64>() - self.sync.returned
    }

    fn read(&mut self, keys: &Keys) {
        let name = self.sync.session.to_string();
        let view = View::of(&keys.list(), keys.index, "", &name, Some(&self.id));
        self.view = Some(view.expect("it is ours"));
    }

    /// The operations of its end; `None` when it is gone.
    fn end(&mut self, keys: &Keys) -> Option<Vec<Op>> {
        self.read(keys);
        let leaving = self.view.as_ref()?.leaving(&self.id)?;
        let place = Place(String::new());
        Some(ops_of_leaving(&place, &leaving, self.sync.session, &self.id))
    }

    /// Its next operations; `None` when there are none.
    fn write(&self, consul_sessions: &ConsulSessions, limit: u64) -> Option<(Change, Vec<Op>)> {
        let mut change = self.view.as_ref()?.next(&self.sync, limit, &self.id, self.overtaken)?;
        change.life.nonce = consul_sessions.nonce();
        let place = Place(String::new());
        let ops = ops(&place, &change, self.sync.session, &self.id, consul_sessions.nonce()).unwrap();
        Some((change, ops))
    }

    /// Sends a sync changed by `say`, and reads the reply.
    fn say(&mut self, keys: &mut Keys, consul_sessions: &ConsulSessions, say: impl FnOnce(&mut SyncRequest)) {
        self.sync.seq += 1;
        say(&mut self.sync);
        self.read(keys);
        while let Some((change, ops)) = self.write(consul_sessions, LIMIT) {
            let written = keys.change(&ops).expect("no conflict");
            self.view.as_mut().unwrap().apply(change, &self.id, written);
        }
        self.hear(&mut BTreeSet::new());
    }

    fn request(&mut self, keys: &mut Keys, consul_sessions: &ConsulSessions, need: &[u64]) {
        for &need in need {
            self.requests += 1;
            let (id, want, queue) = (self.requests, need, true);
            self.sync.requests.push(Request { id, need, want, queue });
        }
        self.say(keys, consul_sessions, |_| {});
    }

    /// Changes the sync. What may be unacknowledged is repeated.
    fn speak(&mut self, random: &mut Random, resizes: bool) {
        self.sync.seq += 1;
        match random.below(8) {
            0..=3 => {
                self.requests += 1;
                let need = 1 + random.below(3);
                let (id, want, queue) = (self.requests, need + random.below(2), random.below(4) > 0);
                self.sync.requests.push(Request { id, need, want, queue });
            }
            4..=5 if self.held() > 0 => self.sync.returned += 1 + random.below(self.held()),
            6 if self.requests > 0 => self.sync.withdrawn.push(1 + random.below(self.requests)),
            7 if resizes || random.below(4) == 0 => self.sync.limit = Some(random.below(7)),
            _ => {}
        }
    }

    /// Reads the reply to its sync.
    fn hear(&mut self, tokens: &mut BTreeSet<u64>) {
        let view = self.view.take().expect("it has read");
        let reply = view.reply(&self.sync, LIMIT, Some(&self.id));
        assert!(reply.alive);
        for grant in reply.grants {
            assert!(grant.token > self.sync.seen && tokens.insert(grant.token), "{grant:?}");
            let twice = self.granted.values().any(|&(request, _)| request == grant.request);
            assert!(!twice, "{grant:?}");
            self.sync.seen = grant.token;
            self.granted.insert(grant.token, (grant.request, grant.units));
        }
        self.sync.begin = false;
        self.sync.requests.clear();
        self.sync.withdrawn.clear();
        self.sync.limit = None;
        self.overtaken = false;
    }
}

const LIMIT: u64 = 4;

fn run(seed: u64, actions: u64, resizes: bool) -> usize {
    let (mut random, consul_sessions, place) = (Random(seed), ConsulSessions::default(), Place(String::new()));
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
                .next(&client.sync, LIMIT, &client.id, client.overtaken)
        {
            change.life.nonce = consul_sessions.nonce();
            let ops = ops(
                &place,
                &change,
                client.sync.session,
                &client.id,
                consul_sessions.nonce(),
            )
            .unwrap();
            match random.below(10) {
                // It gives up, and its write comes later, or is done without an answer.
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
            let returning = client.view.is_some() || client.sync.returned > 0;
            assert!(has as u64 >= client.held() || returning, "{} of {}", has, client.held());
        }
    }
    for mut client in clients {
        if let Some(ops) = client.end(&keys) {
            commit(&mut keys, &ops).expect("no conflict");
        }
    }
    for ops in late {
        // Its writer has ended.
        keys.change(&ops);
    }
    tokens.len()
}

#[test]
fn slots_are_held_once_in_any_order() {
    let granted: usize = (0..100).map(|seed| run(seed, 400, false)).sum();
    assert!(granted > 1_000, "{granted}");
}

#[test]
fn changing_limits_hold_in_any_order() {
    let granted: usize = (0..600).map(|seed| run(seed, 80, true)).sum();
    assert!(granted > 1_000, "{granted}");
}

#[test]
fn a_change_too_large_for_one_write_takes_two() {
    let (consul_sessions, place, mut keys) = (ConsulSessions::default(), Place(String::new()), Keys::default());
    let mut client = Client::new(1);
    for (request, returned) in [(1, 0), (2, 60)] {
        client.sync.seq += 1;
        client.sync.returned = returned;
        client.sync.requests = vec![Request {
            id: request,
            need: 60,
            want: 60,
            queue: true,
        }];
        client.read(&keys);
        let mut writes = 0;
        while let Some(mut change) = client.view.as_ref().unwrap().next(&client.sync, 60, &client.id, false) {
            change.life.nonce = consul_sessions.nonce();
            let ops = ops(
                &place,
                &change,
                client.sync.session,
                &client.id,
                consul_sessions.nonce(),
            )
            .unwrap();
            let written = keys.change(&ops).unwrap();
            client.view.as_mut().unwrap().apply(change, &client.id, written);
            writes += 1;
        }
        assert_eq!((writes, keys.taken().len()), (request, 60));
        client.hear(&mut BTreeSet::new());
    }
}

/// A process lowers the limit, after another has taken a slot above it since the read.
#[test]
fn a_limit_that_is_lowered_counts_what_was_taken_meanwhile() {
    let (consul_sessions, place) = (ConsulSessions::default(), Place(String::new()));
    // Where each of them begins to take.
    for (one, other) in (0..6).flat_map(|one| (0..6).map(move |other| (one, other))) {
        let mut keys = Keys::default();
        let mut clients = [Client::new(1), Client::new(2)];
        // Writes the client's next operations, with this nonce, which decides where the write after it begins to take.
        let write = |client: &mut Client, keys: &mut Keys, nonce: String| {
            let mut change = client.view.as_ref()?.next(&client.sync, 6, &client.id, false)?;
            change.life.nonce = nonce;
            let ops = ops(
                &place,
                &change,
                client.sync.session,
                &client.id,
                consul_sessions.nonce(),
            )
            .unwrap();
            let written = keys.change(&ops);
            match written {
                Some(written) if !change.lowers => client.view.as_mut()?.apply(change, &client.id, written),
                _ => client.read(keys),
            }
            Some(())
        };
        for (client, begin) in clients.iter_mut().zip([one, other]) {
            client.sync.seq = 1;
            client.read(&keys);
            write(client, &mut keys, format!("{begin}")).unwrap();
        }
        let [lowers, takes] = &mut clients;
        lowers.read(&keys);
        takes.read(&keys);
        for (client, limit, need) in [(&mut *takes, None, 4), (&mut *lowers, Some(3), 1)] {
            client.sync.seq = 2;
            client.sync.limit = limit;
            client.sync.requests = vec![Request {
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

/// The answer to an end was late, so that it was repeated: one of the two comes when others hold its slots.
#[test]
fn an_end_that_comes_late_ends_nothing_else() {
    let (consul_sessions, mut keys) = (ConsulSessions::default(), Keys::default());
    let [mut leaves, mut other, mut third] = [1, 2, 3].map(Client::new);
    // A session stays, so that the limit stays.
    third.say(&mut keys, &consul_sessions, |_| {});
    leaves.request(&mut keys, &consul_sessions, &[4]);
    let late = leaves.end(&keys).unwrap();
    let again = leaves.end(&keys).unwrap();
    keys.change(&again).expect("no conflict");
    other.request(&mut keys, &consul_sessions, &[4]);
    assert_eq!((other.held(), keys.taken().len()), (4, 4));
    keys.change(&late);
    assert_eq!(keys.taken().len(), 4, "the other's");
}

/// A limit that was set, and set back before the first was carried out: the first comes later.
#[test]
fn a_late_sync_does_nothing_even_if_the_next_one_changed_nothing() {
    let (consul_sessions, mut keys) = (ConsulSessions::default(), Keys::default());
    let mut client = Client::new(1);
    client.request(&mut keys, &consul_sessions, &[1]);
    client.sync.seq += 1;
    client.sync.limit = Some(9);
    client.read(&keys);
    let (_, late) = client.write(&consul_sessions, LIMIT).unwrap();
    client.say(&mut keys, &consul_sessions, |sync| sync.limit = Some(LIMIT));
    assert_eq!(keys.change(&late), None);
    // A request that was withdrawn before it was known.
    client.sync.seq += 1;
    let request = |id| Request {
        id,
        need: 1,
        want: 1,
        queue: true,
    };
    client.sync.requests.push(request(2));
    client.read(&keys);
    let (_, late) = client.write(&consul_sessions, LIMIT).unwrap();
    client.say(&mut keys, &consul_sessions, |sync| {
        sync.requests.clear();
        sync.withdrawn.push(2);
    });
    assert_eq!(keys.change(&late), None);
}

/// They are counted each, and later waiters leave slots for one.
#[test]
fn equal_requests_of_one_sync_are_left_room_for_one_by_one() {
    let (consul_sessions, mut keys) = (ConsulSessions::default(), Keys::default());
    let [mut holds, mut waits, mut behind] = [1, 2, 3].map(Client::new);
    holds.request(&mut keys, &consul_sessions, &[LIMIT]);
    waits.request(&mut keys, &consul_sessions, &[1, 1]);
    behind.read(&keys);
    let usage = behind.view.as_ref().unwrap().reply(&behind.sync, LIMIT, None).usage;
    assert_eq!(usage.waiting, 2);
    holds.say(&mut keys, &consul_sessions, |sync| sync.returned = 2);
    behind.request(&mut keys, &consul_sessions, &[1, 1]);
    assert_eq!(behind.held(), 1);
    waits.say(&mut keys, &consul_sessions, |_| {});
    assert_eq!(waits.held(), 1);
}

/// Each of the last two sees the other, so that neither deletes the limit.
#[test]
fn the_last_two_that_end_at_once_leave_nothing() {
    let (consul_sessions, mut keys) = (ConsulSessions::default(), Keys::default());
    let mut clients = [Client::new(1), Client::new(2)];
    for client in &mut clients {
        client.request(&mut keys, &consul_sessions, &[1]);
    }
    let ends = clients.each_mut().map(|client| client.end(&keys).unwrap());
    for (client, ops) in clients.iter_mut().zip(ends) {
        // An overtaken session reads again.
        if keys.change(&ops).is_none() {
            let again = client.end(&keys).unwrap();
            keys.change(&again).expect("no conflict");
        }
    }
    assert_eq!(keys.list(), []);
}

/// Newcomers at one time do not all collide.
#[test]
fn newcomers_begin_at_slots_of_their_own() {
    let (consul_sessions, mut first) = (ConsulSessions::default(), BTreeSet::new());
    for number in 0..20 {
        let mut client = Client::new(number);
        let (id, need, want, queue) = (1, 1, 1, true);
        client.sync.seq = 1;
        client.sync.requests = vec![Request { id, need, want, queue }];
        client.read(&Keys::default());
        first.extend(client.write(&consul_sessions, 20).unwrap().0.locked);
    }
    assert!(first.len() > 5, "{first:?}");
}

#[test]
fn impossible_numbers_are_refused() {
    let lives = r#"{"nonce":"","seq":1,"returned":0,"asked":1,"pending":[{"wish":1,"need":61,"want":61,"since":1}]}"#;
    for (key, value) in [("at/limit", r#"{"limit":61,"nonce":""}"#), ("by/1.1", lives)] {
        let mut keys = Keys::default();
        keys.change(&[Op::lock(key, value.as_bytes(), "another")]).unwrap();
        let refused = View::of(&keys.list(), keys.index, "", "", None).unwrap_err();
        assert!(refused.to_string().contains(key), "{refused}");
    }
}

/// A document of holders has no slots, and must not share its key with another limiter.
#[test]
fn other_keys_are_no_slots() {
    let mut keys = Keys::default();
    keys.change(&[Op::cas("holders", b"{}", 0)]).unwrap();
    let refused = View::of(&keys.list(), keys.index, "", "", None).unwrap_err();
    assert!(refused.to_string().contains("holders"), "{refused}");
}
