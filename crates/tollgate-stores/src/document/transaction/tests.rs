//! Processes that read and write at instants of their own, each by another clock, and the true time.

use super::*;
use crate::document::rates::TakerEntry;
use std::collections::{BTreeMap, BTreeSet};
use tollgate::Quota;
use tollgate::remote::{Request, Session};

mod swarm;

const LONG: Duration = Duration::from_secs(3_600);

/// The store, and the true time, in microseconds.
#[derive(Default)]
struct World {
    now: u64,
    document: Option<RateDocument>,
    writes: u64,
    random: u64,
    /// When each token was granted, in order.
    given: Vec<u64>,
    grants: BTreeSet<u64>,
}

/// A process, with a clock of its own.
struct Process {
    clock: u64,
    observer: Option<Observer>,
    sync: SyncRequest,
    /// The reading of the store's own clock.
    time: Option<Time>,
    /// The write on its way to the store, with its number.
    sent: Option<(u64, Transaction)>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: seed,
            ..Self::default()
        }
    }

    /// Marsaglia, "Xorshift RNGs", 2003.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }
}

impl Process {
    fn new(client: u64, clock: u64) -> Self {
        let sync = SyncRequest {
            seq: 0,
            ..SyncRequest::first(Session { client, number: 1 }, LONG)
        };
        Self {
            clock,
            observer: None,
            sync,
            time: None,
            sent: None,
        }
    }

    /// Observes the document, after a read or a write.
    fn see(&mut self, world: &World) {
        let now = world.now + self.clock;
        self.observer = world.document.as_ref().map(|document| match self.observer.take() {
            None => Observer::of(document, now, self.time.as_ref()),
            Some(mut observer) => {
                observer.see(document, now);
                observer
            }
        });
    }

    /// Reads, requests `need` units unless a request is open, and sends the outcome.
    fn read(&mut self, world: &mut World, rule: &Rule, need: u64) {
        self.see(world);
        self.sync.seq += 1;
        if self.sync.requests.is_empty() {
            let id = self.sync.seq;
            let (want, queue) = (need, false);
            self.sync.requests.push(Request { id, need, want, queue });
        }
        let (fresh, seen) = (
            world.draw(u64::MAX),
            world.document.as_ref().zip(self.observer.as_ref()),
        );
        let transact = transact(
            seen,
            world.now + self.clock,
            fresh,
            rule,
            &self.sync,
            self.time.as_ref(),
        )
        .expect("the same rule");
        self.sent = Some((world.writes, transact));
    }

    /// Delivers the write, which changes the document unless another was quicker. The answer may be lost.
    fn write(&mut self, world: &mut World, is_lost: bool) {
        let Some((_, transact)) = self.sent.take().filter(|(writes, _)| *writes == world.writes) else {
            return;
        };
        let DocumentChange::New(document, _) = transact.after else {
            panic!("{transact:?}");
        };
        let text = document.text().expect("JSON");
        world.document = Some(RateDocument::read(&text).expect("what was written can be read"));
        world.writes += 1;
        for grant in &transact.reply.grants {
            if world.grants.insert(grant.token) {
                let given = std::iter::repeat_n(world.now, grant.units as usize);
                world.given.extend(given);
            }
        }
        if is_lost {
            return;
        }
        world.now += world.draw(100);
        self.see(world);
        // A refused request is withdrawn.
        self.sync.requests.clear();
        let last = transact.reply.grants.last();
        self.sync.seen = last.map_or(self.sync.seen, |grant| grant.token);
    }
}

/// Runs processes that want more than there is for `time` microseconds, with rests. One of sixteen answers is lost.
fn run(seed: u64, rule: &Rule, processes: u64, time: u64, rest: u64) -> World {
    let mut world = World::new(seed);
    let mut processes: Vec<_> = (0..processes)
        .map(|client| Process::new(client, (1 << 40) + world.draw(1 << 40)))
        .collect();
    while world.now < time {
        let which = world.draw(processes.len() as u64) as usize;
        let process = &mut processes[which];
        if process.sent.is_some() {
            let is_lost = world.draw(16) == 0;
            process.write(&mut world, is_lost);
        } else {
            let need = 1 + world.draw(3);
            process.read(&mut world, rule, need);
        }
        world.now += match world.draw(200) {
            0 => world.draw(rest),
            _ => world.draw(300),
        };
    }
    world
}

fn quota(text: &str) -> Quota {
    text.parse().expect("a quota")
}

#[test]
fn no_span_of_true_time_exceeds_the_burst_and_its_refill() {
    let quota = quota("1000/s burst 20");
    let fill = Fill::of(&quota).expect("it fits");
    for seed in 1..=30 {
        let given = run(seed, &Rule::Rate { quota }, 1 + seed % 5, 300_000, 60_000).given;
        for (first, &from) in given.iter().enumerate() {
            for (count, &until) in (1..).zip(&given[first..]) {
                let most = fill.brim + (until - from) * fill.gain;
                assert!(
                    count * fill.price <= most,
                    "{count} from {from} to {until}, seed {seed}"
                );
            }
        }
    }
}

/// The store does not report the time, and yet none of it is lost under full demand.
#[test]
fn the_refill_is_given_out() {
    let quota = quota("1000/s burst 20");
    for seed in 1..=5 {
        let given = run(seed, &Rule::Rate { quota }, seed, 500_000, 300).given.len();
        assert!(given >= 500, "{given}, seed {seed}");
    }
}

#[test]
fn no_window_of_true_time_exceeds_its_limit() {
    let length = Duration::from_millis(64);
    for seed in 1..=30 {
        let rule = Rule::Window { limit: 20, length };
        let given = run(seed, &rule, 1 + seed % 5, 300_000, 100_000).given;
        for pair in given.windows(21) {
            let span = pair[20] - pair[0];
            assert!(span >= 64_000, "21 in {span} microseconds, seed {seed}");
        }
    }
}

#[test]
fn room_in_a_window_comes_back_in_time() {
    let length = Duration::from_millis(64);
    for seed in 1..=5 {
        let rule = Rule::Window { limit: 10, length };
        let given = run(seed, &rule, seed, 640_000, 300).given.len();
        // Of ten windows, each of which may be some segments late.
        assert!(given >= 90, "{given}, seed {seed}");
    }
}

/// However many takes there are, no more lots are kept than the window has segments, and one or two more.
#[test]
fn an_observer_of_a_window_merges_its_lots() {
    let length = Duration::from_secs(64);
    let rule = Rule::Window { limit: 100_000, length };
    let mut world = World::new(1);
    let (mut one, mut other) = (Process::new(1, 1 << 40), Process::new(2, 1 << 50));
    let mut most = 0;
    for _ in 0..1_000 {
        for process in [&mut one, &mut other] {
            process.read(&mut world, &rule, 1);
            process.write(&mut world, false);
            let Some(Seen::Lots(lots)) = process.observer.as_ref().map(|observer| &observer.seen) else {
                panic!("a window");
            };
            most = most.max(lots.len());
        }
        world.now += 100_000;
    }
    assert_eq!(world.given.len(), 2_000);
    assert!((60..=66).contains(&most), "{most} lots");
}

/// A new process knows only the document: it counts the time from then on.
#[test]
fn a_late_observer_counts_from_its_first_look() {
    let rule = Rule::Rate {
        quota: quota("1000/s burst 10"),
    };
    let mut world = World::new(1);
    let (mut one, mut late) = (Process::new(1, 1 << 40), Process::new(2, 1 << 50));
    let say = |process: &mut Process, world: &mut World, need| {
        process.sync.requests.clear();
        process.read(world, &rule, need);
        process.write(world, false);
        world.given.len()
    };
    assert_eq!(say(&mut one, &mut world, 10), 10);
    world.now += 5_000;
    assert_eq!(say(&mut late, &mut world, 1), 10);
    world.now += 1_000;
    assert_eq!(say(&mut late, &mut world, 1), 11);
    // A present process knows that more have come, and when the earlier ones were taken.
    assert_eq!(say(&mut one, &mut world, 5), 16);
    // And reports it.
    assert_eq!(say(&mut late, &mut world, 5), 16);
    world.now += 5_000;
    assert_eq!(say(&mut late, &mut world, 5), 21);
}

/// No session is reported as silent for longer than it was.
#[test]
fn no_session_is_forgotten_before_its_time() {
    let ttl = Duration::from_millis(20);
    let rule = Rule::Rate {
        quota: quota("1000/s burst 20"),
    };
    let mut forgotten = 0;
    for seed in 1..=20 {
        let mut world = World::new(seed);
        let mut processes: Vec<_> = (0..5)
            .map(|client| Process::new(client, (1 << 40) + world.draw(1 << 40)))
            .collect();
        for process in &mut processes {
            process.sync.ttl = ttl;
        }
        let mut heard = BTreeMap::new();
        while world.now < 300_000 {
            let which = world.draw(5) as usize;
            let process = &mut processes[which];
            if process.sent.is_some() {
                let (writes, now) = (world.writes, world.now);
                process.write(&mut world, false);
                if world.writes > writes {
                    heard.insert(process.sync.session, now);
                    let takers = &world.document.as_ref().unwrap().takers;
                    for (session, &at) in &heard {
                        let is_young = Duration::from_micros(now - at) < ttl;
                        let is_there = takers.contains_key(&session.to_string());
                        assert!(is_there || !is_young, "{session} at {now}, seed {seed}");
                        forgotten += u64::from(!is_there);
                    }
                }
                // One that has just synced may be restarted, and knows nothing.
                if world.draw(4) == 0 {
                    process.observer = None;
                }
            } else {
                process.read(&mut world, &rule, 1);
            }
            world.now += match world.draw(20) {
                0 => world.draw(30_000),
                _ => world.draw(300),
            };
        }
    }
    assert!(forgotten > 100, "{forgotten}");
}

/// All processes are too short-lived to notice that others are dead.
#[test]
fn the_longest_silent_sessions_are_evicted_first() {
    for (grants, stay) in [(1, 1_300), (100, 72)] {
        let rule = Rule::Window {
            limit: 1_000_000,
            length: LONG,
        };
        let mut world = World::new(1);
        let (mut one, mut other) = (Process::new(0, 1 << 50), Process::new(1 << 63, 1 << 40));
        for process in [&mut one, &mut other] {
            process.read(&mut world, &rule, 1);
            process.write(&mut world, false);
        }
        // Dead, and in the queue besides.
        let name = |client| Session { client, number: 1 }.to_string();
        let document = world.document.as_mut().unwrap();
        let young = TakerEntry {
            // The largest entries that occur.
            by: Some(1_795_308_810_006_767),
            seq: 1_000_000,
            charged: 1_000_000,
            asked: 1_000_000,
            due: 1_000_000,
            grants: vec![(1_000_000, 1_000, 1_795_308_810_006_767); grants],
            ..document.takers[&other.sync.session.to_string()].clone()
        };
        for client in 0..3_000 {
            let age = 3_000_000 - client;
            document
                .takers
                .insert(name(client), TakerEntry { age, ..young.clone() });
            document.queue.push((name(client), 10_000, 1_000));
        }
        other.read(&mut world, &rule, 1);
        other.write(&mut world, false);
        let document = world.document.as_ref().unwrap();
        assert_eq!((document.takers.len(), document.queue.len()), (stay, stay - 1));
        let length = document.text().unwrap().len();
        assert!(length < 300 * 1_024, "{length} bytes");
        for (client, is_there) in [
            (0, false),
            (3_000 - stay as u64, false),
            (3_001 - stay as u64, true),
            (1 << 63, true),
        ] {
            assert_eq!(document.takers.contains_key(&name(client)), is_there, "{client}");
        }
        // An evicted session learns of it, takes nothing, and begins anew.
        one.sync.begin = false;
        one.read(&mut world, &rule, 1);
        let transact = one.sent.take().unwrap().1;
        assert!(
            !transact.reply.alive && matches!(transact.after, DocumentChange::Same),
            "{transact:?}"
        );
        one.sync.begin = true;
        one.read(&mut world, &rule, 1);
        one.write(&mut world, false);
        assert!(world.document.unwrap().takers.contains_key(&name(0)));
    }
}

#[test]
fn a_contradictory_rate_document_is_refused() {
    let mut texts = Vec::new();
    let rules = [
        Rule::Rate {
            quota: quota("1000/s burst 10"),
        },
        Rule::Window {
            limit: 10,
            length: LONG,
        },
    ];
    for rule in rules {
        let mut world = World::new(1);
        let mut one = Process::new(1, 0);
        for _ in 0..2 {
            one.read(&mut world, &rule, 1);
            one.write(&mut world, false);
        }
        texts.push(String::from_utf8(world.document.unwrap().text().unwrap()).unwrap());
    }
    let [bucket, window] = [&texts[0], &texts[1]];
    for (good, from, to) in [
        (bucket, "\"price\":1000", "\"price\":0"),
        (bucket, "\"gain\":1", "\"gain\":0"),
        (bucket, "\"brim\":10000", "\"brim\":1"),
        (bucket, "\"level\":", "\"level\":9"),
        (bucket, "\"level\":", "\"levels\":"),
        (bucket, "0000000000000001.1", "1.1"),
        (bucket, "\"ttl\":3600000000", "\"ttl\":18446744073709551615"),
        (window, "\"taken\":2", "\"taken\":1"),
        (window, "\"nanos\":", "\"nanos\":0,\"x\":"),
        (window, "\"nanos\":3600000000000", "\"nanos\":0"),
        (window, "\"limit\":10", "\"limit\":18446744073709551615"),
    ] {
        assert!(RateDocument::read(good.as_bytes()).is_some(), "{good}");
        let bad = good.replace(from, to);
        assert_ne!(&bad, good, "{from}");
        let read = RateDocument::read(bad.as_bytes());
        assert!(read.is_none() || to == "\"level\":9", "{bad}");
    }
}
