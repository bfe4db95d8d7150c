//! A policy of legs of several kinds that is reloaded, against a list of waiters before limiters of the same kinds, each asked by itself:
//! who is admitted and when, what each leg has left, and that no waiter sleeps whose turn has come.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, BoxLimiter, Cost, Demand, FixedWindow, Inherit, Limiter, LimiterExt, ManualClock, Outcome, Permit, Quota,
    Reason, Refusal, Semaphore, SlidingLog, SlidingWindow, TokenBucket,
};
use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload, ReloadablePolicy};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);
/// No number of a leg is smaller, and no request larger: each can be admitted at some instant.
const LEAST: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Join {
        n: u64,
        tokens: u64,
    },
    Try {
        n: u64,
        tokens: u64,
    },
    Poll(usize),
    Leave(usize),
    End(usize, Outcome),
    Drop(usize),
    Forget(usize),
    Settle(usize, u64),
    Advance(u64),
    /// Another number for a leg.
    Change {
        leg: usize,
        number: u64,
        rule: Inherit,
    },
    /// A leg goes, or comes back.
    Toggle(usize),
    MaxQueue(Option<usize>),
}

impl Op {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        let (n, tokens) = (u64::from(a) % (LEAST + 1), u64::from(b) % (LEAST + 1));
        let at = usize::from(a);
        match which % 34 {
            0..9 => Self::Join { n, tokens },
            9..12 => Self::Try { n, tokens },
            12..14 => Self::Leave(at),
            14..17 => {
                let outcomes = [Outcome::Success, Outcome::Failure, Outcome::Overload, Outcome::Ignored];
                Self::End(at, outcomes[usize::from(b % 4)])
            }
            17..20 => Self::Drop(at),
            20 => Self::Forget(at),
            21..23 => Self::Settle(at, u64::from(b % 9)),
            23..27 => Self::Advance(u64::from(u16::from_le_bytes([a, b])) * 50_000),
            27..29 => {
                let rules = [Inherit::AsIs, Inherit::Proportional, Inherit::Reset];
                Self::Change {
                    leg: usize::from(a % 4),
                    number: LEAST + u64::from(b % 7),
                    rule: rules[usize::from(b / 8 % 3)],
                }
            }
            29..31 => Self::Toggle(at),
            31..33 => Self::Poll(at),
            _ => Self::MaxQueue((a % 8 < 5).then_some(usize::from(a % 8))),
        }
    }
}

/// A limiter that changes as a leg does.
enum Twin {
    Slots(Arc<Semaphore>),
    Bucket(Arc<TokenBucket>),
    Fixed(Arc<FixedWindow>),
    Window(Arc<SlidingWindow>),
    Log(Arc<SlidingLog>),
}

impl Twin {
    fn new(rule: Kind, number: u64, clock: &ManualClock) -> Self {
        match rule {
            Kind::Slots => Self::Slots(Arc::new(Semaphore::new(number as usize))),
            Kind::Bucket => Self::Bucket(Arc::new(TokenBucket::new(quota(number)).on(clock))),
            Kind::Fixed => Self::Fixed(Arc::new(FixedWindow::new(number, SECOND).unwrap().on(clock))),
            Kind::Window => Self::Window(Arc::new(SlidingWindow::new(number, SECOND).unwrap().on(clock))),
            Kind::Log => Self::Log(Arc::new(SlidingLog::new(number, SECOND).unwrap().on(clock))),
        }
    }

    fn set(&self, number: u64, rule: Inherit) {
        if rule == Inherit::Reset {
            self.reset();
        }
        match self {
            Self::Slots(it) => it.set_limit(number as usize),
            Self::Bucket(it) => it.set_quota(quota(number), rule),
            Self::Fixed(it) => it.set_limit(number, rule),
            Self::Window(it) => it.set_limit(number, rule),
            Self::Log(it) => it.set_limit(number, rule),
        }
    }

    fn reset(&self) {
        match self {
            Self::Slots(_) => {}
            Self::Bucket(it) => it.reset(),
            Self::Fixed(it) => it.reset(),
            Self::Window(it) => it.reset(),
            Self::Log(it) => it.reset(),
        }
    }

    fn available(&self) -> u64 {
        match self {
            Self::Slots(it) => it.available_permits() as u64,
            Self::Bucket(it) => it.available(),
            Self::Fixed(it) => it.available(),
            Self::Window(it) => it.available(),
            Self::Log(it) => it.available(),
        }
    }

    fn boxed(&self, counts_tokens: bool) -> BoxLimiter {
        macro_rules! each {
            ($($kind:ident)*) => {
                match self {
                    $(Self::$kind(it) if counts_tokens => Arc::clone(it).per(TOKENS).boxed(),
                    Self::$kind(it) => Arc::clone(it).boxed(),)*
                }
            };
        }
        each!(Slots Bucket Fixed Window Log)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Slots,
    Bucket,
    Fixed,
    Window,
    Log,
}

impl Kind {
    fn kind(self, number: u64) -> LegKind {
        match self {
            Self::Slots => LegKind::Semaphore { limit: number as usize },
            Self::Bucket => LegKind::TokenBucket { quota: quota(number) },
            Self::Fixed => LegKind::FixedWindow {
                limit: number,
                window: SECOND,
            },
            Self::Window => LegKind::SlidingWindow {
                limit: number,
                window: SECOND,
                segments: 64,
            },
            Self::Log => LegKind::SlidingLog {
                limit: number,
                window: SECOND,
            },
        }
    }
}

/// Bursts of `number`, at a rate that grows with it, so that a change tightens or loosens both: it is made in one step.
fn quota(number: u64) -> Quota {
    Quota::per_second(number / 3).burst(number)
}

/// A leg, and the limiter that stands for it.
struct Leg {
    name: &'static str,
    kind: Kind,
    counts_tokens: bool,
    twin: Twin,
    limiter: Arc<BoxLimiter>,
}

impl Leg {
    /// As it was made: it has come back after it was gone.
    fn renew(&mut self, number: u64, clock: &ManualClock) {
        self.twin = Twin::new(self.kind, number, clock);
        self.limiter = Arc::new(self.twin.boxed(self.counts_tokens));
    }
}

struct Version {
    /// By leg: its number and its rule, and whether it is there.
    legs: Vec<(u64, Inherit, bool)>,
    max_queue: Option<usize>,
}

impl Version {
    fn spec(&self, legs: &[Leg]) -> PolicySpec {
        let there = legs.iter().zip(&self.legs).filter(|(_, (.., there))| *there);
        let mut spec = PolicySpec::new(there.map(|(leg, (number, rule, _))| {
            let per = leg.counts_tokens.then(|| "tokens".to_owned());
            LegSpec {
                per,
                inherit: *rule,
                ..LegSpec::new(leg.name, leg.kind.kind(*number))
            }
        }));
        spec.max_queue = self.max_queue;
        // A waiter that is late is not made up for.
        spec.lateness = Some(Duration::ZERO);
        spec
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Admitted<'a> = Permit<&'a ReloadablePolicy>;

struct Waiter<'a> {
    ask: Ask,
    future: Pin<Box<dyn Future<Output = Result<Admitted<'a>, Refusal>> + 'a>>,
    woken: Arc<Woken>,
}

/// A permit of the policy, and those of the limiters.
type Held<'a> = (Admitted<'a>, Vec<Permit<Arc<BoxLimiter>>>);

struct Pair<'a> {
    policy: &'a ReloadablePolicy,
    legs: Vec<Leg>,
    clock: ManualClock,
    version: Version,
    /// By leg, the number that the latest version with it gave it.
    applied: Vec<u64>,
    waiting: Vec<Waiter<'a>>,
    held: Vec<Held<'a>>,
}

impl<'a> Pair<'a> {
    /// All limiters admit it, or none.
    fn take(&self, ask: Ask) -> Option<Vec<Permit<Arc<BoxLimiter>>>> {
        let there = self
            .legs
            .iter()
            .zip(&self.version.legs)
            .filter(|(_, (.., there))| *there);
        let mut taken = Vec::new();
        for (leg, _) in there {
            match leg.limiter.try_admit_owned(ask) {
                Ok(permit) => taken.push(permit),
                Err(_) => {
                    taken.into_iter().for_each(Permit::cancel);
                    return None;
                }
            }
        }
        Some(taken)
    }

    /// The waiters whose turn has come are admitted, first come, first served.
    fn serve(&mut self) {
        while let Some(head) = self.waiting.first() {
            let taken = self.take(head.ask);
            let mut head = if taken.is_some() {
                self.waiting.remove(0)
            } else {
                return;
            };
            assert!(head.woken.0.load(Ordering::SeqCst), "{:?} sleeps on", head.ask);
            match poll(&mut head) {
                Poll::Ready(Ok(permit)) => self.held.extend(taken.map(|taken| (permit, taken))),
                Poll::Ready(Err(refused)) => panic!("{:?}: {refused}", head.ask),
                Poll::Pending => panic!("{:?} still waits", head.ask),
            }
        }
    }

    /// How long until all limiters would admit the head; `None` where no time helps.
    fn until_head(&self) -> Option<Duration> {
        let ask = self.waiting.first()?.ask;
        let (reading, mut longest) = (ClockReading::default(), Duration::ZERO);
        for (leg, _) in self.legs.iter().zip(&self.version.legs).filter(|(_, leg)| leg.2) {
            if let Err(refusal) = leg.limiter.look(&Demand::new(&ask, &reading)) {
                longest = longest.max(refusal.retry_after()?);
            }
        }
        Some(longest)
    }

    /// Each waiter is admitted at the instant at which all limiters would do so, without a poll.
    fn advance(&mut self, mut time: Duration) {
        while let Some(next) = self.until_head().filter(|next| *next <= time) {
            self.clock.advance(next);
            time -= next;
            let waiting = self.waiting.len();
            self.serve();
            self.compare();
            assert!(self.waiting.len() < waiting, "no limiter refuses, and none admits");
        }
        self.clock.advance(time);
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Join { n, tokens } => {
                let ask = Ask::many(n).cost(TOKENS, tokens);
                let mut waiter = Waiter {
                    ask,
                    future: Box::pin(self.policy.admit(ask)),
                    woken: Arc::default(),
                };
                let taken = if self.waiting.is_empty() { self.take(ask) } else { None };
                match (poll(&mut waiter), taken) {
                    (Poll::Ready(Ok(permit)), Some(taken)) => self.held.push((permit, taken)),
                    (Poll::Pending, None) => {
                        self.waiting.push(waiter);
                        let most = self.version.max_queue;
                        assert!(most.is_none_or(|most| self.waiting.len() <= most), "the queue is full");
                    }
                    (Poll::Ready(Err(refused)), None) => {
                        assert_eq!(refused.reason(), Reason::QueueFull, "{ask:?}: {refused}");
                        assert!(self.version.max_queue.is_some_and(|most| self.waiting.len() >= most));
                    }
                    (ended, taken) => panic!("{ask:?}: ready {}, taken {}", ended.is_ready(), taken.is_some()),
                }
            }
            Op::Try { n, tokens } => {
                let ask = Ask::many(n).cost(TOKENS, tokens);
                let taken = if self.waiting.is_empty() { self.take(ask) } else { None };
                match (self.policy.try_admit(ask), taken) {
                    (Ok(permit), Some(taken)) => self.held.push((permit, taken)),
                    (Err(_), None) => {}
                    (Ok(_), None) => panic!("{ask:?} was admitted"),
                    (Err(refused), Some(_)) => panic!("{ask:?}: {refused}"),
                }
            }
            Op::Poll(at) if !self.waiting.is_empty() => {
                let at = at % self.waiting.len();
                assert!(
                    poll(&mut self.waiting[at]).is_pending(),
                    "it was admitted before its turn"
                );
            }
            Op::Leave(at) if !self.waiting.is_empty() => drop(self.waiting.remove(at % self.waiting.len())),
            Op::End(at, outcome) if !self.held.is_empty() => {
                let (permit, taken) = self.held.swap_remove(at % self.held.len());
                permit.finish(outcome);
                taken.into_iter().for_each(|permit| permit.finish(outcome));
            }
            Op::Drop(at) if !self.held.is_empty() => drop(self.held.swap_remove(at % self.held.len())),
            Op::Forget(at) if !self.held.is_empty() => {
                let (permit, taken) = self.held.swap_remove(at % self.held.len());
                // Its slots are gone for good. A waiter for more than there are would be passed over.
                let slots = self.legs.iter().find_map(|leg| {
                    if let Twin::Slots(it) = &leg.twin {
                        Some(it)
                    } else {
                        None
                    }
                });
                if slots.is_none_or(|slots| slots.limit() as u64 >= 2 * LEAST) {
                    permit.forget();
                    taken.into_iter().for_each(Permit::forget);
                }
            }
            Op::Settle(at, actual) if !self.held.is_empty() => {
                let at = at % self.held.len();
                let (permit, taken) = &mut self.held[at];
                let settled = taken.iter_mut().filter_map(|permit| permit.settle(TOKENS, actual).ok());
                let settled: u32 = settled.sum();
                assert_eq!(permit.settle(TOKENS, actual).unwrap_or(0), settled);
            }
            Op::Poll(_) | Op::Leave(_) | Op::End(..) | Op::Drop(_) | Op::Forget(_) | Op::Settle(..) => {}
            Op::Advance(nanos) => self.advance(Duration::from_nanos(nanos)),
            Op::Change { leg, number, rule } => {
                let at = leg % self.legs.len();
                let there = self.version.legs[at].2;
                self.version.legs[at] = (number, rule, there);
                self.apply();
            }
            Op::Toggle(at) => {
                let at = at % self.legs.len();
                self.version.legs[at].2 ^= true;
                if !self.version.legs.iter().any(|(.., there)| *there) {
                    self.version.legs[at].2 = true;
                } else if self.version.legs[at].2 {
                    self.applied[at] = self.version.legs[at].0;
                    self.legs[at].renew(self.applied[at], &self.clock);
                }
                self.apply();
            }
            Op::MaxQueue(most) => {
                self.version.max_queue = most;
                self.apply();
            }
        }
        self.serve();
        self.compare();
    }

    fn apply(&mut self) {
        let spec = self.version.spec(&self.legs);
        self.policy.apply(spec.clone()).unwrap();
        assert_eq!(*self.policy.limiter().spec(), spec);
        for (at, leg) in self.legs.iter().enumerate() {
            let (number, rule, there) = self.version.legs[at];
            // A leg whose number is the same is kept, whatever its rule says.
            if there && self.applied[at] != number {
                self.applied[at] = number;
                leg.twin.set(number, rule);
            }
        }
    }

    fn compare(&self) {
        assert_eq!(self.policy.waiting(), self.waiting.len());
        for (leg, (.., there)) in self.legs.iter().zip(&self.version.legs) {
            let status = self.policy.limiter().leg(leg.name);
            assert_eq!(status.is_some(), *there);
            if let Some(status) = status {
                // Slots that the head was granted, while it waits for another leg, are not free for others.
                let free = leg.twin.available();
                let granted = self.waiting.first().filter(|_| leg.kind == Kind::Slots);
                let kept = granted.is_some_and(|head| status.available() == free.checked_sub(head.ask.count()));
                assert!(kept || status.available() == Some(free), "{}: {status:?}", leg.name);
            }
        }
    }
}

fn poll<'a>(waiter: &mut Waiter<'a>) -> Poll<Result<Admitted<'a>, Refusal>> {
    waiter.woken.0.store(false, Ordering::SeqCst);
    let waker = Waker::from(Arc::clone(&waiter.woken));
    waiter.future.as_mut().poll(&mut Context::from_waker(&waker))
}

/// A bucket of tokens, slots, and one or two more of a kind that `kinds` says.
pub(crate) fn run(kinds: [u8; 2], ops: Vec<Op>) {
    let clock = ManualClock::new();
    let all = [Kind::Bucket, Kind::Fixed, Kind::Window, Kind::Log];
    let [third, fourth] = kinds.map(|kind| all[usize::from(kind % 4)]);
    let rows = [
        ("tokens", Kind::Bucket, true),
        ("slots", Kind::Slots, false),
        ("calls", third, false),
        ("more tokens", fourth, true),
    ];
    let legs: Vec<_> = rows[..3 + usize::from(kinds[1] / 4 % 2)]
        .iter()
        .map(|&(name, kind, counts_tokens)| {
            let twin = Twin::new(kind, 6, &clock);
            let limiter = Arc::new(twin.boxed(counts_tokens));
            Leg {
                name,
                kind,
                counts_tokens,
                twin,
                limiter,
            }
        })
        .collect();
    let version = Version {
        legs: vec![(6, Inherit::AsIs, true); legs.len()],
        max_queue: None,
    };
    let policy = version.spec(&legs).build(&clock).unwrap();
    let mut pair = Pair {
        policy: &policy,
        applied: vec![6; legs.len()],
        legs,
        clock,
        version,
        waiting: Vec::new(),
        held: Vec::new(),
    };
    for op in ops {
        pair.step(op);
    }
    pair.waiting.clear();
    pair.held.clear();
    pair.clock.advance(SECOND * 1_000);
    pair.compare();
}
