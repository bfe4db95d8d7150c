//! Processes that come, sync once or twice, and die: none of them lives long enough to observe that time passes. The store
//! keeps a clock of its own.

use super::*;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// A process, with its reading of the clock, and the instant of that.
struct Visitor {
    process: Process,
    read: Option<(Time, u64)>,
}

/// How a store's clock is read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// There is none.
    None,
    /// In whole seconds of a lease, as in etcd: the time of the write is unknown.
    Seconds,
    /// In milliseconds, as in ZooKeeper, which reports the time of the write.
    Millis,
}

struct Shop {
    world: World,
    kind: Kind,
    clock: u64,
    /// When this clock began.
    begun: u64,
    /// When the document was written.
    written: u64,
    clients: u64,
}

impl Shop {
    fn new(kind: Kind, seed: u64) -> Self {
        Self {
            world: World::new(seed),
            kind,
            clock: 1,
            begun: 0,
            written: 0,
            clients: 0,
        }
    }

    /// A reading of the clock.
    fn time(&self) -> Option<Time> {
        let clock = (self.clock, 0);
        let said = |at: u64, unit: u64| at.saturating_sub(self.begun) / unit * unit;
        match self.kind {
            Kind::None => None,
            Kind::Seconds => {
                let now = said(self.world.now, SECOND);
                let by = now + SECOND;
                Some(Time {
                    clock,
                    now,
                    by,
                    written: by,
                })
            }
            Kind::Millis => {
                let now = said(self.world.now, 1_000);
                let (by, written) = (now + 1_000, said(self.written, 1_000) + 1_000);
                // A write before the beginning of this clock is only known to be before now.
                let written = if self.written < self.begun { by } else { written };
                Some(Time {
                    clock,
                    now,
                    by,
                    written,
                })
            }
        }
    }

    /// Elects another leader: its clock begins anew.
    fn elect(&mut self) {
        self.clock += 1;
        self.begun = self.world.now;
    }

    fn pass(&mut self, below: u64) -> u64 {
        let passed = self.world.draw(below);
        self.world.now += passed;
        passed
    }

    /// A process comes, with a clock of its own, and reads.
    fn enters(&mut self, ttl: Duration) -> Visitor {
        self.clients += 1;
        let clock = (1 << 40) + self.world.draw(1 << 40);
        let mut process = Process::new(self.clients, clock);
        process.sync.ttl = ttl;
        Visitor { process, read: None }
    }

    /// It syncs, and may be overtaken until it is written.
    fn syncs(&mut self, visitor: &mut Visitor, rule: &Rule, need: u64) {
        let is_new = visitor.process.observer.is_none();
        if is_new {
            visitor.read = self.time().map(|time| (time, self.world.now));
        }
        self.pass(2_000);
        visitor.process.time = visitor.read.map(|(time, at)| {
            // It extrapolates its reading.
            let passed = self.world.now - at;
            let (now, by) = (time.now + passed, time.by + passed);
            let written = if is_new { time.written } else { by };
            Time {
                now,
                by,
                written,
                ..time
            }
        });
        visitor.process.read(&mut self.world, rule, need);
    }

    fn writes(&mut self, visitor: &mut Visitor, is_lost: bool) {
        self.pass(2_000);
        let (writes, now) = (self.world.writes, self.world.now);
        visitor.process.write(&mut self.world, is_lost);
        if self.world.writes > writes {
            self.written = now;
        }
    }

    /// Processes come `every` so often, each with the same need. Those that close sync once more.
    fn visits(&mut self, rule: &Rule, ttl: Duration, until: u64, every: u64, need: u64, closes: bool) -> usize {
        while self.world.now < until {
            let next = self.world.now + every;
            let mut visitor = self.enters(ttl);
            self.syncs(&mut visitor, rule, need);
            self.writes(&mut visitor, false);
            if closes {
                self.world.now += every / 100;
                visitor.process.sync.end = true;
                self.syncs(&mut visitor, rule, need);
                self.writes(&mut visitor, false);
            }
            self.world.now = self.world.now.max(next);
        }
        self.world.given.len()
    }
}

fn rate(text: &str) -> Rule {
    Rule::Rate { quota: quota(text) }
}

fn window(limit: u64, length: u64) -> Rule {
    let length = Duration::from_micros(length);
    Rule::Window { limit, length }
}

const TTL: Duration = Duration::from_secs(1);

#[test]
fn a_swarm_gets_the_refill_where_the_store_keeps_a_clock() {
    // Twenty within each second, each of which wants a token.
    for (kind, seconds, least, most) in [
        (Kind::None, 10, 40, 60),
        (Kind::Seconds, 60, 560, 640),
        (Kind::Millis, 60, 560, 640),
    ] {
        for closes in [false, true] {
            let mut shop = Shop::new(kind, 7);
            let given = shop.visits(&rate("10/s burst 40"), TTL, seconds * SECOND, SECOND / 20, 1, closes);
            assert!((least..=most).contains(&given), "{given}, {kind:?}, {closes}");
        }
    }
}

/// Dead sessions are forgotten, though no newcomer lives as long as they do.
#[test]
fn a_swarm_leaves_no_pile_of_the_dead() {
    for (kind, most) in [(Kind::Seconds, 70), (Kind::Millis, 25)] {
        let mut shop = Shop::new(kind, 7);
        shop.visits(&rate("10/s burst 40"), TTL, 20 * SECOND, SECOND / 20, 1, false);
        let takers = shop.world.document.as_ref().unwrap().takers.len();
        assert!((10..=most).contains(&takers), "{takers}, {kind:?}");
    }
}

#[test]
fn a_window_of_a_swarm_has_its_limit_again_and_again() {
    for (kind, least) in [(Kind::Seconds, 150), (Kind::Millis, 180)] {
        let mut shop = Shop::new(kind, 7);
        let given = shop.visits(&window(20, 8 * SECOND), TTL, 80 * SECOND, SECOND / 20, 1, false);
        assert!((least..=200).contains(&given), "{given}, {kind:?}");
    }
}

/// Once an hour a process takes nearly all of an hour's refill.
#[test]
fn a_job_of_each_hour_finds_what_came_in_the_hour() {
    for (kind, closes, least) in [
        (Kind::Millis, false, 90),
        (Kind::Millis, true, 90),
        (Kind::Seconds, true, 90),
        // No process could date the last take before the next one.
        (Kind::Seconds, false, 45),
    ] {
        let mut shop = Shop::new(kind, 7);
        let given = shop.visits(&rate("10/1h burst 10"), 60 * TTL, 10 * HOUR, HOUR, 9, closes);
        assert_eq!(given, least, "{kind:?}, {closes}");
    }
}

/// Some live longer than others, overtake each other, lose answers, and now and then the leader changes.
fn crowd(kind: Kind, rule: &Rule, seed: u64, time: u64) -> Shop {
    let mut shop = Shop::new(kind, seed);
    let mut crowd: Vec<Visitor> = Vec::new();
    while shop.world.now < time {
        if crowd.len() < 4 {
            let ttl = Duration::from_micros(1 + shop.world.draw(2 * SECOND));
            crowd.push(shop.enters(ttl));
        }
        let which = shop.world.draw(crowd.len() as u64) as usize;
        let mut visitor = crowd.swap_remove(which);
        if visitor.process.sent.is_some() {
            let is_lost = shop.world.draw(8) == 0;
            shop.writes(&mut visitor, is_lost);
        } else {
            let need = 1 + shop.world.draw(3);
            shop.syncs(&mut visitor, rule, need);
        }
        if visitor.process.sent.is_some() || shop.world.draw(2) == 0 {
            crowd.push(visitor);
        }
        match shop.world.draw(40) {
            0 => shop.pass(3 * SECOND),
            _ => shop.pass(30_000),
        };
        if shop.world.draw(200) == 0 {
            shop.elect();
        }
    }
    shop
}

#[test]
fn no_span_of_true_time_has_more_though_a_crowd_uses_the_clock_of_the_store() {
    let quota = quota("20/s burst 30");
    let fill = Fill::of(&quota).expect("it fits");
    for kind in [Kind::Seconds, Kind::Millis] {
        let mut all = 0;
        for seed in 1..=12 {
            let given = crowd(kind, &Rule::Rate { quota }, seed, 30 * SECOND).world.given;
            all += given.len();
            for (first, &from) in given.iter().enumerate() {
                for (count, &until) in (1..).zip(&given[first..]) {
                    let most = fill.brim + (until - from) * fill.gain;
                    assert!(
                        count * fill.price <= most,
                        "{count} from {from} to {until}, seed {seed}, {kind:?}"
                    );
                }
            }
        }
        assert!(all > 12 * 200, "{all}, {kind:?}");
    }
}

#[test]
fn no_window_of_true_time_has_more_though_a_crowd_uses_the_clock_of_the_store() {
    for kind in [Kind::Seconds, Kind::Millis] {
        let mut all = 0;
        for seed in 1..=12 {
            let given = crowd(kind, &window(20, 4 * SECOND), seed, 40 * SECOND).world.given;
            all += given.len();
            for pair in given.windows(21) {
                let span = pair[20] - pair[0];
                assert!(span >= 4 * SECOND, "21 in {span} microseconds, seed {seed}, {kind:?}");
            }
        }
        assert!(all > 12 * 60, "{all}, {kind:?}");
    }
}
