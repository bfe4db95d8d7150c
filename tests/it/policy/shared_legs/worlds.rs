//! Random worlds in virtual time: two to six policies over two to five shared legs, in any order of legs and waiters, with weights, cancels,
//! time-outs, changes, and callers that use a leg directly.

use super::{Counted, Draws, Woken, event};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::policy::{Class, Partitions};
use tollgate::{
    Ask, Cost, FixedWindow, Inherit, Legs, LimiterExt, ManualClock, Order, Permit, Policy, Quota, Reason, Semaphore,
    SlidingWindow, TokenBucket,
};

const MS: Duration = Duration::from_millis(1);
const WEIGHT: Cost = Cost::new("weight");
/// How long an admission is held in milliseconds, unless it is released earlier.
const HOLD: u64 = 20;
/// A policy is starved after this number of rounds in which each leg of each policy is waited for once.
const ROUNDS: f64 = 5.0;

enum Shared {
    Bucket(Arc<TokenBucket>, u64),
    Semaphore(Arc<Semaphore>),
    Fixed(Arc<FixedWindow>, u64),
    Sliding(Arc<SlidingWindow>, u64),
    Classes(Arc<Partitions>, [Arc<Class>; 2]),
}

struct Leg {
    shared: Shared,
    /// The burst or the limit that it began with.
    limit: u64,
    /// The most of it that was held, as of the latest check.
    held: u64,
}

/// A policy, and for each of its legs the leg, the class there, and whether it counts weights.
struct Member {
    policy: Policy<Legs>,
    legs: Vec<(usize, usize, bool)>,
    order: Order,
    served: u64,
}

type Admission = Pin<Box<dyn Future<Output = Result<Permit<Policy<Legs>>, tollgate::Refusal>>>>;

struct Waiter {
    member: usize,
    ask: Ask,
    number: u64,
    woken: Arc<Woken>,
    waker: Waker,
    future: Admission,
}

struct Holder {
    member: usize,
    ask: Ask,
    until: Duration,
    permit: Permit<Policy<Legs>>,
}

struct World {
    seed: u64,
    draws: Draws,
    clock: ManualClock,
    legs: Vec<Leg>,
    members: Vec<Member>,
    waiters: Vec<Waiter>,
    holders: Vec<Holder>,
    numbers: u64,
    steps: u64,
}

fn leg(draws: &mut Draws, clock: &ManualClock) -> Leg {
    let (shared, limit) = match draws.within(0, 12) {
        0..5 => {
            let (rate, burst) = (draws.within(5, 60), draws.within(3, 8));
            let bucket = TokenBucket::new(Quota::per_second(rate).burst(burst)).on(clock);
            (Shared::Bucket(Arc::new(bucket), rate), burst)
        }
        5..8 => {
            let limit = draws.within(3, 7);
            (Shared::Semaphore(Arc::new(Semaphore::new(limit as usize))), limit)
        }
        8 => {
            let (limit, ms) = (draws.within(3, 8), draws.within(100, 500));
            let window = FixedWindow::new(limit, MS * ms as u32).unwrap().on(clock);
            (Shared::Fixed(Arc::new(window), ms), limit)
        }
        9 => {
            let (limit, ms) = (draws.within(3, 8), draws.within(100, 500));
            let segments = draws.within(1, 5) as usize;
            let window = SlidingWindow::new(limit, MS * ms as u32).unwrap();
            let window = window.segments(segments).unwrap().on(clock);
            (Shared::Sliding(Arc::new(window), ms), limit)
        }
        _ => {
            let limit = draws.within(6, 10);
            let parts = Arc::new(Partitions::lent(limit as usize, 2).unwrap());
            let classes = [0, 1].map(|class| Arc::clone(parts.class(class)));
            (Shared::Classes(parts, classes), limit)
        }
    };
    Leg { shared, limit, held: 0 }
}

fn order(draws: &mut Draws) -> Order {
    match draws.within(0, 8) {
        0..4 => Order::Fifo,
        4 => Order::Lifo,
        5 => Order::RoundRobin,
        6 => Order::Shares(vec![3, 1]),
        _ => Order::Priority {
            classes: 2,
            patience: draws.within(1, 5) as u32,
        },
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let (mut draws, clock) = (Draws::new(seed), ManualClock::new());
        let legs: Vec<_> = (0..draws.within(2, 6)).map(|_| leg(&mut draws, &clock)).collect();
        let members = (0..draws.within(2, 7))
            .map(|_| Self::member(&mut draws, &clock, &legs))
            .collect();
        Self {
            seed,
            draws,
            clock,
            legs,
            members,
            waiters: Vec::new(),
            holders: Vec::new(),
            numbers: 0,
            steps: 0,
        }
    }

    fn member(draws: &mut Draws, clock: &ManualClock, legs: &[Leg]) -> Member {
        let mut left: Vec<usize> = (0..legs.len()).collect();
        let count = match draws.one_in(3) {
            true => 1,
            false => draws.within(1, 1 + legs.len().min(4) as u64) as usize,
        };
        let (mut all, mut own) = (Legs::new(), Vec::new());
        for _ in 0..count {
            let at = left.swap_remove(draws.within(0, left.len() as u64) as usize);
            let (class, weighs) = (draws.within(0, 2) as usize, draws.one_in(3));
            macro_rules! add {
                ($leg:expr) => {
                    match weighs {
                        true => all.push(Counted(Arc::clone($leg)).per(WEIGHT)),
                        false => all.push(Counted(Arc::clone($leg))),
                    }
                };
            }
            match &legs[at].shared {
                Shared::Bucket(bucket, _) => add!(bucket),
                Shared::Semaphore(semaphore) => add!(semaphore),
                Shared::Fixed(window, _) => add!(window),
                Shared::Sliding(window, _) => add!(window),
                Shared::Classes(_, classes) => add!(&classes[class]),
            }
            own.push((at, class, weighs));
        }
        let order = order(draws);
        let policy = Policy::builder()
            .limit(all)
            .order(order.clone())
            .on(clock)
            .build()
            .unwrap();
        Member {
            policy,
            legs: own,
            order,
            served: 0,
        }
    }

    fn run<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let (result, steps) = event(|| change(self));
        self.steps = self.steps.max(steps);
        result
    }

    fn units(member: &Member, at: usize, ask: &Ask) -> u64 {
        let of_leg = member.legs.iter().filter(|&&(leg, ..)| leg == at);
        of_leg
            .map(|&(.., weighs)| if weighs { ask.of(WEIGHT).unwrap() } else { ask.count() })
            .sum()
    }

    fn admit(&mut self, member: usize, ask: Ask, patience: Option<Duration>) {
        let policy = self.members[member].policy.clone();
        let future: Admission = match patience {
            None => Box::pin(policy.admit_owned(ask)),
            // The policy's own handle lives as long as the future.
            Some(patience) => Box::pin(async move { Ok(policy.admit_timeout(ask, patience).await?.into_owned()) }),
        };
        let (woken, waker) = Woken::new();
        let number = self.numbers;
        self.numbers += 1;
        self.waiters.push(Waiter {
            member,
            ask,
            number,
            woken,
            waker,
            future,
        });
        self.settle();
    }

    /// Polls what was woken until nothing is.
    fn settle(&mut self) {
        while let Some(at) = self.waiters.iter().position(|waiter| waiter.woken.take()) {
            let polled = self.run(|world| {
                let waiter = &mut world.waiters[at];
                waiter.future.as_mut().poll(&mut Context::from_waker(&waiter.waker))
            });
            let Poll::Ready(end) = polled else { continue };
            let waiter = self.waiters.remove(at);
            let Ok(permit) = end else { continue };
            let member = &mut self.members[waiter.member];
            member.served += 1;
            if member.order == Order::Fifo {
                // An older one may have its permit already: then it was woken.
                let older = self
                    .waiters
                    .iter()
                    .find(|older| older.member == waiter.member && older.number < waiter.number);
                let overtaken = older.is_some_and(|older| !older.woken.0.load(std::sync::atomic::Ordering::SeqCst));
                assert!(
                    !overtaken,
                    "world {}: {} was served before an older waiter",
                    self.seed, waiter.number
                );
            }
            let until = self.clock.elapsed() + MS * HOLD as u32;
            self.holders.push(Holder {
                member: waiter.member,
                ask: waiter.ask,
                until,
                permit,
            });
        }
        self.check();
    }

    /// No limit is exceeded, and what is held is counted as in use.
    fn check(&mut self) {
        for at in 0..self.legs.len() {
            let held: u64 = self
                .holders
                .iter()
                .map(|holder| Self::units(&self.members[holder.member], at, &holder.ask))
                .sum();
            let leg = &mut self.legs[at];
            let (limit, in_use) = match &leg.shared {
                Shared::Semaphore(semaphore) => (semaphore.limit() as u64, semaphore.in_use() as u64),
                Shared::Classes(parts, _) => (parts.limit() as u64, parts.in_use() as u64),
                _ => continue,
            };
            assert!(
                held <= limit || held <= leg.held,
                "world {}: {held} are held of {limit}",
                self.seed
            );
            assert!(
                in_use >= held,
                "world {}: {in_use} are in use, and {held} are held",
                self.seed
            );
            leg.held = held;
        }
    }

    fn release(&mut self, at: usize, cancels: bool) {
        let holder = self.holders.swap_remove(at);
        self.run(|_| match cancels {
            true => holder.permit.cancel(),
            false => drop(holder.permit),
        });
        self.settle();
    }

    fn ask(&mut self) -> Ask {
        let (count, weight, class) = (
            self.draws.within(1, 4),
            self.draws.within(1, 3),
            self.draws.within(0, 3),
        );
        Ask::many(count).cost(WEIGHT, weight).class(class)
    }

    fn change(&mut self, at: usize, limit: u64) {
        let inherit = [Inherit::AsIs, Inherit::Reset, Inherit::Proportional][self.draws.within(0, 3) as usize];
        self.run(|world| match &world.legs[at].shared {
            Shared::Bucket(bucket, rate) => bucket.set_quota(Quota::per_second(*rate).burst(limit), inherit),
            Shared::Semaphore(semaphore) => semaphore.set_limit(limit as usize),
            Shared::Fixed(window, _) => window.set_limit(limit, inherit),
            Shared::Sliding(window, _) => window.set_limit(limit, inherit),
            Shared::Classes(parts, _) => parts.set_limit(2 * limit as usize),
        });
        self.settle();
    }

    fn random_steps(&mut self) {
        for _ in 0..self.draws.within(40, 120) {
            match self.draws.within(0, 17) {
                0..7 => {
                    let member = self.draws.within(0, self.members.len() as u64) as usize;
                    let patience = self.draws.one_in(2).then(|| MS * self.draws.within(1, 1_500) as u32);
                    let ask = self.ask();
                    self.admit(member, ask, patience);
                }
                7 if !self.waiters.is_empty() => {
                    let at = self.draws.within(0, self.waiters.len() as u64) as usize;
                    let waiter = self.waiters.remove(at);
                    self.run(|_| drop(waiter));
                    self.settle();
                }
                8..11 if !self.holders.is_empty() => {
                    let at = self.draws.within(0, self.holders.len() as u64) as usize;
                    let cancels = self.draws.one_in(2);
                    self.release(at, cancels);
                }
                11..14 => {
                    let ms = self.draws.within(0, 120) as u32;
                    self.run(|world| world.clock.advance(MS * ms));
                    self.settle();
                }
                14 => {
                    let at = self.draws.within(0, self.legs.len() as u64) as usize;
                    let limit = self.draws.within(2, 8);
                    self.change(at, limit);
                }
                15.. => self.use_directly(),
                _ => {}
            }
        }
    }

    /// A caller that uses a leg past all policies, and gives back at once what can be given back.
    fn use_directly(&mut self) {
        let at = self.draws.within(0, self.legs.len() as u64) as usize;
        self.run(|world| match &world.legs[at].shared {
            Shared::Bucket(bucket, _) => _ = bucket.try_acquire(1),
            Shared::Fixed(window, _) => _ = window.try_acquire(1),
            Shared::Sliding(window, _) => _ = window.try_acquire(1),
            Shared::Semaphore(semaphore) => drop(semaphore.try_acquire()),
            Shared::Classes(_, classes) => drop(classes[0].try_admit(1)),
        });
        self.settle();
    }

    /// The longest time for which a policy may wait for a leg when all are served one after the other.
    fn round_of(&self, at: usize) -> f64 {
        let leg = &self.legs[at];
        match &leg.shared {
            Shared::Bucket(_, rate) => 3.0 / *rate as f64,
            Shared::Semaphore(_) | Shared::Classes(..) => HOLD as f64 / 1_000.0,
            Shared::Fixed(_, ms) | Shared::Sliding(_, ms) => *ms as f64 * 2.0 / 1_000.0,
        }
    }

    /// The number of waiters of one member.
    fn waiting(&self, member: usize) -> usize {
        self.waiters.iter().filter(|waiter| waiter.member == member).count()
    }

    /// Every policy always has waiters: each is served again and again.
    fn saturate(&mut self) {
        for at in 0..self.legs.len() {
            let limit = self.legs[at].limit;
            self.change(at, limit);
        }
        let of_member = |member: &Member| member.legs.iter().map(|leg| self.round_of(leg.0)).sum::<f64>();
        let round: f64 = self.members.iter().map(of_member).sum();
        let bound = Duration::from_secs_f64(ROUNDS * round + 0.5);
        let end = self.clock.elapsed() + 2 * bound;
        let mut last: Vec<_> = self
            .members
            .iter()
            .map(|member| (member.served, self.clock.elapsed()))
            .collect();
        while self.clock.elapsed() < end {
            for (member, last) in last.iter_mut().enumerate() {
                while self.waiting(member) < 2 {
                    let ask = self.ask().class(0);
                    let before = self.waiting(member);
                    self.admit(member, ask, None);
                    if self.waiting(member) <= before {
                        break;
                    }
                }
                let now = self.clock.elapsed();
                if self.members[member].served != last.0 {
                    *last = (self.members[member].served, now);
                }
                let passed = now - last.1;
                assert!(
                    passed <= bound,
                    "world {}: policy {member} was not served for {passed:?}, a round is {round}",
                    self.seed
                );
            }
            self.run(|world| world.clock.advance(10 * MS));
            self.settle();
            while let Some(at) = self
                .holders
                .iter()
                .position(|holder| holder.until <= self.clock.elapsed())
            {
                self.release(at, false);
            }
        }
    }

    /// No newcomers, and all is released: every wait ends.
    fn drain(&mut self) {
        for _ in 0..3_000 {
            while !self.holders.is_empty() {
                self.release(0, false);
            }
            if self.waiters.is_empty() {
                break;
            }
            self.run(|world| world.clock.advance(40 * MS));
            self.settle();
        }
        let left: Vec<_> = self
            .waiters
            .iter()
            .map(|waiter| (waiter.member, waiter.number))
            .collect();
        assert!(left.is_empty(), "world {}: {left:?} wait for ever", self.seed);
        for leg in &self.legs {
            let in_use = match &leg.shared {
                Shared::Semaphore(semaphore) => semaphore.in_use(),
                Shared::Classes(parts, _) => parts.in_use(),
                _ => 0,
            };
            assert_eq!(in_use, 0, "world {}: a permit has leaked", self.seed);
        }
    }

    /// Plays the world, and returns the most looks at legs that one event took.
    fn play(seed: u64) -> u64 {
        let mut world = Self::new(seed);
        world.random_steps();
        world.saturate();
        world.random_steps();
        for at in 0..world.legs.len() {
            let limit = world.legs[at].limit;
            world.change(at, limit);
        }
        world.drain();
        world.steps
    }
}

/// The number of worlds: few, or as many as `WORLDS` says.
fn worlds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|given| given.parse().ok());
    let from = number("FIRST_WORLD").unwrap_or(0);
    from..from + number("WORLDS").unwrap_or(2_000)
}

#[test]
fn in_every_world_each_event_ends_and_each_policy_is_served() {
    let most = worlds().map(World::play).max();
    assert!(most > Some(4), "the worlds ask their legs");
}

/// A caller that waits directly at a semaphore is one more waiter there.
#[test]
fn direct_waiters_and_policies_share_a_semaphore_in_the_order_of_their_ages() {
    let clock = ManualClock::new();
    let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::new(1)));
    let held = semaphore.try_acquire().unwrap();
    let policy = Policy::builder().limit(semaphore).on(&clock).build().unwrap();
    let direct = || Box::pin(semaphore.acquire());
    let (mut first, mut last) = (direct(), direct());
    let (_, waker) = Woken::new();
    let mut cx = Context::from_waker(&waker);
    let mut of_policy = Box::pin(policy.admit(1));
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(of_policy.as_mut().poll(&mut cx).is_pending());
    assert!(last.as_mut().poll(&mut cx).is_pending());
    drop(held);
    let Poll::Ready(Ok(held)) = first.as_mut().poll(&mut cx) else {
        panic!("the oldest has it")
    };
    assert!(of_policy.as_mut().poll(&mut cx).is_pending() && last.as_mut().poll(&mut cx).is_pending());
    drop(held);
    let Poll::Ready(Ok(held)) = of_policy.as_mut().poll(&mut cx) else {
        panic!("the policy has it")
    };
    assert!(last.as_mut().poll(&mut cx).is_pending());
    drop(held);
    assert!(last.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn a_semaphore_that_stands_in_two_legs_is_refused_when_the_policy_is_built() {
    let semaphore = Arc::new(Semaphore::new(2));
    let built = Policy::builder()
        .limit(Arc::clone(&semaphore))
        .limit(Arc::clone(&semaphore))
        .build();
    assert_eq!(built.unwrap_err(), tollgate::PolicyError::SameQueue { leg: 1 });
    let policy = Policy::new((Arc::clone(&semaphore), semaphore));
    let held = policy.try_admit(1).unwrap();
    let refused = ManualClock::new().run(policy.admit(1)).unwrap_err();
    assert_eq!(refused.reason(), Reason::Misconfigured);
    drop(held);
}
