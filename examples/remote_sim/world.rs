//! The machines, the store behind its network, and the observations of them.

use futures::future::{join, select};
use futures::stream::{FuturesUnordered, StreamExt};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, Memory, Notification, Prefetch, Remote, Rule, Session, StoreError, SyncReply, SyncRequest,
};
use tollgate::{Clock, ManualClock, Quota};

/// There and back is a millisecond, give or take a fifth.
const WAY: Duration = Duration::from_micros(500);
const TTL: Duration = Duration::from_secs(1);
const MEASURE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(1_500));
const DEATH: Duration = MEASURE.1;
const END: Duration = Duration::from_millis(3_500);
const SAMPLE: Duration = Duration::from_millis(25);
/// How many workers a machine has, and how long each of them holds a permit.
const WORKERS: u64 = 10;
const HOLD: Duration = Duration::from_millis(100);
/// The capacity, in percent of the demand of all machines.
const SHARE: u64 = 60;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Shape {
    /// Held for some time: as many at once as make up the rate.
    Permits,
    /// Spent.
    Tokens,
}

pub(crate) struct Plan {
    pub(crate) machines: u64,
    pub(crate) shape: Shape,
    pub(crate) prefetch: Option<Prefetch>,
}

pub(crate) struct Outcome {
    /// The used part of the capacity before the deaths.
    pub(crate) utilisation: f64,
    /// Jain's index of the machines' shares before the deaths.
    pub(crate) fairness: f64,
    /// Steps, and admissions, a second before the deaths.
    pub(crate) syncs: f64,
    pub(crate) admitted: f64,
    /// The time after the deaths until 95 % of the capacity was used again.
    pub(crate) recovery: Option<Duration>,
    /// More permits were held than there are.
    pub(crate) exceeded: bool,
    /// The used part of the capacity, sample by sample.
    pub(crate) used: Vec<f64>,
}

struct Line {
    store: Arc<Memory>,
    clock: Clock,
    syncs: Arc<AtomicU64>,
    dice: AtomicU64,
}

impl Line {
    async fn way(&self) {
        // Relaxed: one thread.
        let roll = mix(self.dice.fetch_add(1, Ordering::Relaxed)) % 200;
        sleep(&self.clock, WAY * (900 + roll as u32) / 1_000).await;
    }
}

impl Backend for Line {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        self.way().await;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let reply = self.store.sync(key, rule, sync).await;
        self.way().await;
        reply
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.store.notified(key, session).await;
        self.way().await;
    }

    fn notification(&self, key: &Key, session: Session) -> Notification {
        self.store.notification(key, session)
    }
}

/// Numbers that look like chance. (Steele and others, SplitMix64.)
fn mix(n: u64) -> u64 {
    let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

async fn sleep(clock: &Clock, time: Duration) {
    clock.sleep(time).await;
}

/// The observations of all machines.
struct Seen {
    held: Cell<i64>,
    admitted: Cell<u64>,
    /// By machine, while it is measured.
    given: RefCell<Vec<u64>>,
    measuring: Cell<bool>,
    exceeded: Cell<bool>,
    limit: i64,
}

/// A permit whose holder lives.
struct Holds<'a>(&'a Seen);

impl Drop for Holds<'_> {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - 1);
    }
}

impl Seen {
    fn admit(&self, machine: u64) -> Holds<'_> {
        self.held.set(self.held.get() + 1);
        self.admitted.set(self.admitted.get() + 1);
        if self.held.get() > self.limit {
            self.exceeded.set(true);
        }
        if self.measuring.get() {
            self.given.borrow_mut()[machine as usize] += 1;
        }
        Holds(self)
    }
}

/// Wants a permit, holds it, and wants the next.
async fn worker(clock: &Clock, remote: &Remote<Line>, seen: &Seen, machine: u64, number: u64) {
    // They do not begin all at once.
    sleep(clock, HOLD * (mix(machine * WORKERS + number) % 100) as u32 / 100).await;
    while let Ok(permit) = remote.acquire(1).await {
        let held = (!permit.is_lost()).then(|| seen.admit(machine));
        sleep(clock, HOLD).await;
        drop((held, permit));
    }
}

/// Wants a token at each tenth of a worker's time, or as soon after it as may be.
async fn spender(clock: &Clock, remote: &Remote<Line>, seen: &Seen, machine: u64) {
    let every = HOLD / WORKERS as u32;
    sleep(clock, every * (mix(machine) % 100) as u32 / 100).await;
    let mut next = clock.now();
    while let Ok(token) = remote.acquire(1).await {
        drop((seen.admit(machine), token));
        next = clock.after(next, every).max(clock.now());
        clock.sleep_until(next).await;
    }
}

async fn machine(plan: &Plan, clock: &Clock, line: Line, seen: &Seen, number: u64) {
    let key = Key::new("shared").expect("a name");
    // A second's worth of a worker's permits.
    let limit = seen.limit as u64;
    let builder = match plan.shape {
        Shape::Permits => Remote::permits(key, limit),
        Shape::Tokens => {
            let rate = plan.machines * WORKERS * 1_000 / HOLD.as_millis() as u64 * SHARE / 100;
            Remote::rate(key, Quota::per_second(rate).burst((rate / 100).max(100)))
        }
    };
    let builder = builder.on(clock).ttl(TTL).client(number + 1);
    let builder = match plan.prefetch {
        Some(prefetch) => builder.prefetch(prefetch),
        None => builder,
    };
    let (remote, driver) = builder.build(line).expect("settings that can be");
    let clients = async {
        match plan.shape {
            Shape::Permits => {
                let workers = (0..WORKERS).map(|n| worker(clock, &remote, seen, number, n));
                workers.collect::<FuturesUnordered<_>>().collect::<Vec<_>>().await;
            }
            Shape::Tokens => spender(clock, &remote, seen, number).await,
        }
    };
    // Three in ten die, without a word.
    let life = if number % 10 < 3 { DEATH } else { END };
    let (all, end) = (pin!(join(clients, driver)), pin!(sleep(clock, life)));
    select(all, end).await;
}

/// Looks at the machines now and then.
async fn watch(plan: &Plan, clock: &Clock, seen: &Seen, syncs: &AtomicU64) -> Outcome {
    let per_sample =
        plan.machines as f64 * WORKERS as f64 * SAMPLE.as_secs_f64() / HOLD.as_secs_f64() * SHARE as f64 / 100.0;
    let (mut used, mut admitted, mut begun) = (Vec::new(), 0, (0, 0));
    let (mut measured, mut recovery) = ((0, 0), None);
    let samples = (END.as_millis() / SAMPLE.as_millis()) as u32;
    for sample in 1..samples {
        sleep(clock, SAMPLE).await;
        let so_far = (syncs.load(Ordering::Relaxed), seen.admitted.get());
        let share = match plan.shape {
            Shape::Permits => seen.held.get() as f64 / seen.limit as f64,
            Shape::Tokens => (so_far.1 - admitted) as f64 / per_sample,
        };
        admitted = so_far.1;
        used.push(share);
        let now = SAMPLE * sample;
        if now == MEASURE.0 {
            begun = so_far;
            seen.measuring.set(true);
        }
        if now == MEASURE.1 {
            measured = (so_far.0 - begun.0, so_far.1 - begun.1);
            seen.measuring.set(false);
        }
        if now > DEATH && share >= 0.95 {
            recovery.get_or_insert(now - DEATH);
        }
    }
    let span = (MEASURE.1 - MEASURE.0).as_secs_f64();
    let window =
        (MEASURE.0.as_millis() / SAMPLE.as_millis()) as usize..(MEASURE.1.as_millis() / SAMPLE.as_millis()) as usize;
    let window = &used[window];
    let given = seen.given.borrow();
    let sum: f64 = given.iter().map(|&n| n as f64).sum();
    let squares: f64 = given.iter().map(|&n| (n * n) as f64).sum();
    Outcome {
        utilisation: window.iter().sum::<f64>() / window.len() as f64,
        fairness: sum * sum / (given.len() as f64 * squares),
        syncs: measured.0 as f64 / span,
        admitted: measured.1 as f64 / span,
        recovery,
        exceeded: plan.shape == Shape::Permits && seen.exceeded.get(),
        used,
    }
}

pub(crate) fn run(plan: &Plan) -> Outcome {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1_000));
    let store = Arc::new(Memory::new(&clock));
    let syncs = Arc::new(AtomicU64::new(0));
    let seen = Seen {
        held: Cell::new(0),
        admitted: Cell::new(0),
        given: RefCell::new(vec![0; plan.machines as usize]),
        measuring: Cell::new(false),
        exceeded: Cell::new(false),
        limit: (plan.machines * WORKERS * SHARE / 100) as i64,
    };
    let line = |number: u64| Line {
        store: Arc::clone(&store),
        clock: clock.clock().clone(),
        syncs: Arc::clone(&syncs),
        dice: AtomicU64::new(number << 32),
    };
    let machines = (0..plan.machines).map(|n| machine(plan, &clock, line(n), &seen, n));
    let all = machines.collect::<FuturesUnordered<_>>().collect::<Vec<_>>();
    clock.run(join(all, watch(plan, &clock, &seen, &syncs))).1
}
