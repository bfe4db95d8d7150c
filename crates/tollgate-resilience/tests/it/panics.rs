//! Users' code panics at the k-th call into it, for every k, in every public operation that calls any. Afterwards the limiters
//! are as after an outcome that is ignored, nothing is out, and the next caller is served.
//!
//! A situation builds everything anew around one [`Foreign`], which stands behind all that a user brings: wakers, listeners,
//! limiters, laws. It takes its steps as separate callers would, each caught by itself, and then looks at what is left.
//! [`sweep`] runs it for each k until a run makes no more calls, in three ways: the k-th call panics; all from the k-th on do;
//! and these do while permits and futures are dropped by a thread that panics already, where one more panic that goes on would
//! abort the process. A user's own drop never panics during a panic.
//!
//! With `SWEEP_TRACE` set each run and each panic is printed, with its backtrace: an abort prints nothing by itself.

use source::Source;
use std::any::Any;
use std::fmt;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::panicking;
use std::time::Duration;
use tollgate::sync::{Place, Watch};
use tollgate::{
    Demand, Description, Limiter, LimiterExt, ManualClock, Outcome, Policy, Refusal, Semaphore, Settlement,
};
use tollgate_resilience::adaptive::{Adaptive, LimitLaw, Resizable, Sample};
use tollgate_resilience::retry::{Backoff, Repeat, Retry};
use tollgate_resilience::shed::RetryBudget;
use tollgate_resilience::{BreakerState, CircuitBreaker, OpenTime};

const SECOND: Duration = Duration::from_secs(1);

/// Which calls panic, from the k-th.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Strike {
    Once,
    Onwards,
    OnwardsInUnwinding,
}

/// All users' code of one run.
struct Foreign {
    k: usize,
    strike: Strike,
    armed: AtomicBool,
    calls: AtomicUsize,
    /// Clones of wakers that have not been dropped.
    wakers: AtomicIsize,
    /// The calls that have panicked.
    struck: Mutex<Vec<&'static str>>,
}

/// What users' code panics with. Dropping it is a call into users' code, too.
struct Payload(&'static Foreign);

impl Drop for Payload {
    fn drop(&mut self) {
        self.0.dropped("drop of a payload");
    }
}

fn is_payload(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Payload>()
}

impl Foreign {
    fn new(k: usize, strike: Strike) -> &'static Self {
        Box::leak(Box::new(Self {
            k,
            strike,
            armed: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            wakers: AtomicIsize::new(0),
            struck: Mutex::default(),
        }))
    }

    /// Users' code is called.
    fn call(&'static self, what: &'static str) {
        if !self.armed.load(SeqCst) {
            return;
        }
        let call = self.calls.fetch_add(1, SeqCst);
        if call == self.k || call > self.k && self.strike != Strike::Once {
            self.struck.lock().unwrap().push(what);
            if std::env::var_os("SWEEP_TRACE").is_some() {
                eprintln!("{what} panics: {}", std::backtrace::Backtrace::force_capture());
            }
            resume_unwind(Box::new(Payload(self)));
        }
    }

    /// A user's destructor is called.
    fn dropped(&'static self, what: &'static str) {
        if !panicking() {
            self.call(what);
        }
    }

    fn arm(&self) {
        self.armed.store(true, SeqCst);
    }

    fn disarm(&self) {
        self.armed.store(false, SeqCst);
    }

    /// What one caller does. `None` when users' code has panicked in it; any other panic is a fault.
    fn step<R>(&self, step: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(result) => Some(result),
            Err(payload) if is_payload(&*payload) => {
                forget(payload);
                None
            }
            Err(payload) => resume_unwind(payload),
        }
    }

    /// Drops what a caller has: in a thread that panics, if that is the way of this run.
    fn drop<T>(&self, value: T) {
        if self.strike != Strike::OnwardsInUnwinding {
            self.step(|| drop(value));
            return;
        }
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _dropped = value;
            resume_unwind(Box::new("a task panicked"));
        }));
        assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"a task panicked"));
    }
}

/// Runs `situation` for each k until a run makes no k-th call.
fn sweep(name: impl fmt::Debug, situation: impl Fn(&'static Foreign)) {
    for strike in [Strike::Once, Strike::Onwards, Strike::OnwardsInUnwinding] {
        for k in 0.. {
            assert!(k < 2_000, "the calls have no end");
            let foreign = Foreign::new(k, strike);
            if std::env::var_os("SWEEP_TRACE").is_some() {
                eprintln!("{name:?}, call {k}, {strike:?}");
            }
            let ran = catch_unwind(AssertUnwindSafe(|| situation(foreign)));
            foreign.disarm();
            let struck = foreign.struck.lock().unwrap();
            if let Err(payload) = ran {
                eprintln!("{name:?}, call {k}, {strike:?}: panicked in {struck:?}");
                match is_payload(&*payload) {
                    true => panic!("a step panicked outside of any caller"),
                    false => resume_unwind(payload),
                }
            }
            assert_eq!(
                foreign.wakers.load(SeqCst),
                0,
                "{name:?}, call {k}, {strike:?} {struck:?}: a waker is kept"
            );
            if struck.is_empty() {
                assert!(k > 0, "no users' code is called");
                break;
            }
        }
    }
}

/// Wakers all of whose calls are users' code: the clone as well, which a waker made of an `Arc` does not show.
#[allow(unsafe_code, reason = "a waker with a clone of one's own takes a vtable")]
mod source {
    use super::*;
    use std::task::{RawWaker, RawWakerVTable};

    /// What one waker wakes.
    pub(super) struct Source {
        foreign: &'static Foreign,
        pub(super) woken: AtomicBool,
    }

    impl Source {
        pub(super) fn new(foreign: &'static Foreign) -> &'static Self {
            Box::leak(Box::new(Self {
                foreign,
                woken: AtomicBool::new(false),
            }))
        }

        /// A waker that its owner must forget: it does not count.
        pub(super) fn waker(&'static self) -> Waker {
            // SAFETY: the data is a `Source` that lives for ever and can be shared; the calls keep to the contract of a
            // waker, which allows them to panic.
            unsafe { Waker::from_raw(self.raw()) }
        }

        fn raw(&'static self) -> RawWaker {
            RawWaker::new(std::ptr::from_ref(self).cast(), &CALLS)
        }

        fn of(data: *const ()) -> &'static Self {
            // SAFETY: only `raw` makes such data.
            unsafe { &*data.cast::<Self>() }
        }

        fn wake(&self, what: &'static str) {
            self.woken.store(true, SeqCst);
            self.foreign.call(what);
        }
    }

    static CALLS: RawWakerVTable = RawWakerVTable::new(
        |data| {
            let source = Source::of(data);
            source.foreign.call("clone of a waker");
            source.foreign.wakers.fetch_add(1, SeqCst);
            source.raw()
        },
        |data| {
            let source = Source::of(data);
            source.foreign.wakers.fetch_sub(1, SeqCst);
            source.wake("wake");
        },
        |data| Source::of(data).wake("wake_by_ref"),
        |data| {
            let source = Source::of(data);
            source.foreign.wakers.fetch_sub(1, SeqCst);
            source.foreign.dropped("drop of a waker");
        },
    );
}

/// The tasks of a run, and the executor that polls those which are woken. A task whose poll panics ends.
struct Tasks<'a> {
    foreign: &'static Foreign,
    list: Vec<Option<Task<'a>>>,
}

struct Task<'a> {
    future: Pin<Box<dyn Future<Output = ()> + 'a>>,
    source: &'static Source,
}

impl<'a> Tasks<'a> {
    fn new(foreign: &'static Foreign) -> Self {
        let list = Vec::new();
        Self { foreign, list }
    }

    /// Adds a task and polls it once.
    fn spawn<R>(&mut self, future: impl Future<Output = R> + 'a) {
        let future = Box::pin(async move {
            future.await;
        });
        let source = Source::new(self.foreign);
        self.list.push(Some(Task { future, source }));
        self.poll(self.list.len() - 1);
    }

    fn poll(&mut self, i: usize) {
        let Some(task) = &mut self.list[i] else { return };
        task.source.woken.store(false, SeqCst);
        let waker = task.source.waker();
        let mut context = Context::from_waker(&waker);
        let polled = self.foreign.step(|| task.future.as_mut().poll(&mut context));
        forget(waker);
        if polled != Some(Poll::Pending) {
            self.cancel(i);
        }
    }

    /// Polls each task with another waker.
    fn repoll(&mut self) {
        for i in 0..self.list.len() {
            if let Some(task) = &mut self.list[i] {
                task.source = Source::new(self.foreign);
            }
            self.poll(i);
        }
    }

    /// Drops a task.
    fn cancel(&mut self, i: usize) {
        if let Some(task) = self.list[i].take() {
            self.foreign.drop(task);
        }
    }

    /// Polls all that are woken, until none is.
    fn run(&mut self) {
        for round in 0.. {
            assert!(round < 1_000, "a task spins");
            let woken = |task: &Option<Task<'_>>| task.as_ref().is_some_and(|task| task.source.woken.load(SeqCst));
            let Some(i) = self.list.iter().position(woken) else {
                break;
            };
            self.poll(i);
        }
    }

    /// Nothing panics any more, and all time passes: each task must end, having been woken.
    #[track_caller]
    fn end(&mut self, clock: &ManualClock) {
        self.foreign.disarm();
        loop {
            self.run();
            if !clock.advance_to_next_timer() {
                break;
            }
        }
        let left: Vec<_> = (0..self.list.len()).filter(|&i| self.list[i].is_some()).collect();
        assert!(left.is_empty(), "tasks {left:?} are never woken");
    }
}

/// A limiter of the user's, which admits everything.
#[derive(Clone, Copy)]
struct Own(&'static Foreign);

fn own(foreign: &'static Foreign) -> Own {
    Own(foreign)
}

impl Limiter for Own {
    type Ticket = u64;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        self.0.call("try_reserve");
        Ok(demand.ask().count())
    }
    fn cancel(&self, _: u64) {
        self.0.call("cancel");
    }
    fn finish(&self, _: u64, _: Outcome) {
        self.0.call("finish");
    }
    fn settle(&self, _: &mut u64, _: &Settlement) -> u32 {
        self.0.call("settle");
        0
    }
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        self.0.call("look");
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.0.call("describe");
        visit(Description::new("own").as_new(true));
    }
}

const PERMITS: usize = 2;

/// Nothing is out, and all can be taken.
#[track_caller]
fn untouched(semaphore: &Semaphore, permits: usize) {
    assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0));
    assert_eq!((semaphore.available_permits(), semaphore.limit()), (permits, permits));
    assert!(semaphore.try_acquire_many(permits as u32).is_ok());
}

/// A rate or permits of the user's, around ours. It panics before it takes and after it has given back.
struct OwnAround<L>(&'static Foreign, L);

impl<L: Limiter> Limiter for OwnAround<L> {
    type Ticket = L::Ticket;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<L::Ticket, Refusal> {
        self.0.call("try_reserve around");
        self.1.try_reserve(demand)
    }
    fn cancel(&self, ticket: L::Ticket) {
        self.1.cancel(ticket);
        self.0.call("cancel around");
    }
    fn finish(&self, ticket: L::Ticket, outcome: Outcome) {
        self.1.finish(ticket, outcome);
        self.0.call("finish around");
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.0.call("look around");
        self.1.look(demand)
    }
    fn leave(&self, place: &Place) {
        self.1.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.1.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.1.describe(visit);
    }
}

impl<L: Resizable> Resizable for OwnAround<L> {
    fn limit(&self) -> usize {
        self.0.call("limit");
        self.1.limit()
    }
    fn set_limit(&self, limit: usize) {
        self.1.set_limit(limit);
        self.0.call("set_limit");
    }
    fn in_use(&self) -> usize {
        self.0.call("in_use");
        self.1.in_use()
    }
}

#[test]
fn laws_of_adaptive_limits_may_panic() {
    struct OwnLaw(&'static Foreign);
    impl LimitLaw for OwnLaw {
        fn next(&mut self, limit: f64, _: &Sample) -> f64 {
            self.0.call("law");
            if limit > 2.0 { 2.0 } else { 3.0 }
        }
    }
    sweep((), |foreign| {
        let (semaphore, clock) = (Arc::new(Semaphore::new(PERMITS)), ManualClock::new());
        let limit = Adaptive::builder(Arc::clone(&semaphore))
            .law(OwnLaw(foreign))
            .bounds(2, 3);
        let limit = Arc::new(limit.window(Duration::ZERO, 1).on(&clock).build().unwrap());
        let legs = (own(foreign), Arc::clone(&limit), own(foreign));
        let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
        foreign.arm();
        let held: Vec<_> = (0..2)
            .filter_map(|_| foreign.step(|| policy.try_admit(1).ok()).flatten())
            .collect();
        let mut tasks = Tasks::new(foreign);
        for _ in 0..3 {
            tasks.spawn(policy.admit(1));
        }
        tasks.spawn(semaphore.acquire());
        tasks.repoll();
        clock.advance(SECOND);
        for permit in held {
            foreign.step(|| permit.finish(Outcome::Success));
        }
        tasks.cancel(0);
        foreign.step(|| limit.pin(3));
        foreign.step(|| limit.unpin());
        tasks.run();
        tasks.end(&clock);
        assert_eq!((policy.waiting(), semaphore.waiting(), semaphore.in_use()), (0, 0, 0));
        // The law is asked again.
        let before = limit.limit();
        let permit = policy.try_admit(1).expect("the next caller is served");
        clock.advance(SECOND);
        permit.finish(Outcome::Success);
        assert_ne!(limit.limit(), before);
    });
}

#[test]
fn permits_under_an_adaptive_limit_may_panic() {
    sweep((), |foreign| {
        let (semaphore, clock) = (Arc::new(Semaphore::new(PERMITS)), ManualClock::new());
        let limit = Adaptive::builder(OwnAround(foreign, Arc::clone(&semaphore))).bounds(2, 3);
        let limit = Arc::new(limit.window(Duration::ZERO, 1).on(&clock).build().unwrap());
        let policy = Policy::builder().on(&clock).limit(Arc::clone(&limit)).build().unwrap();
        foreign.arm();
        let held: Vec<_> = (0..2)
            .filter_map(|_| foreign.step(|| policy.try_admit(1).ok()).flatten())
            .collect();
        let mut tasks = Tasks::new(foreign);
        for _ in 0..3 {
            tasks.spawn(policy.admit(1));
        }
        tasks.spawn(semaphore.acquire());
        tasks.repoll();
        clock.advance(SECOND);
        for (permit, outcome) in held.into_iter().zip([Outcome::Success, Outcome::Overload]) {
            foreign.step(|| permit.finish(outcome));
        }
        tasks.cancel(0);
        for pinned in [3, 2] {
            foreign.step(|| limit.pin(pinned));
        }
        foreign.step(|| limit.unpin());
        tasks.run();
        tasks.end(&clock);
        assert_eq!((policy.waiting(), semaphore.waiting(), semaphore.in_use()), (0, 0, 0));
        // What is pinned is in force, whatever has panicked before.
        for pinned in [3, 2] {
            limit.pin(pinned);
            assert_eq!(semaphore.limit(), pinned);
        }
        drop(policy.try_admit(2).expect("the next caller is served"));
    });
}

/// Looks at its limiter, and pins it, when it is asked; the first time it panics.
struct Nosy {
    limiter: Arc<OnceLock<Arc<Adaptive>>>,
    asked: Arc<AtomicUsize>,
}

impl LimitLaw for Nosy {
    fn next(&mut self, limit: f64, _: &Sample) -> f64 {
        let limiter = self.limiter.get().unwrap();
        limiter.pin(limiter.limit());
        limiter.unpin();
        // The window that this ends is asked about afterwards, once.
        limiter.try_admit(1).unwrap().finish(Outcome::Overload);
        match self.asked.fetch_add(1, Ordering::Relaxed) {
            0 => resume_unwind(Box::new("a law panicked")),
            _ => limit + 1.0,
        }
    }
}

#[test]
fn a_law_that_panics_or_uses_its_limiter_holds_nothing_up() {
    let clock = ManualClock::new();
    let (cell, asked) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(0)));
    let law = Nosy {
        limiter: Arc::clone(&cell),
        asked: Arc::clone(&asked),
    };
    let limiter = Adaptive::builder(Semaphore::new(4))
        .law(law)
        .window(Duration::ZERO, 1)
        .bounds(1, 9);
    let limiter = Arc::new(limiter.on(&clock).build().unwrap());
    assert!(cell.set(Arc::clone(&limiter)).is_ok());
    let permit = limiter.try_admit(1).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| permit.finish(Outcome::Success))).is_err());
    assert_eq!(
        (
            limiter.limiter().in_use(),
            limiter.limit(),
            asked.load(Ordering::Relaxed)
        ),
        (0, 4, 1)
    );
    limiter.try_admit(1).unwrap().finish(Outcome::Success);
    assert_eq!(
        (
            limiter.limiter().in_use(),
            limiter.limit(),
            asked.load(Ordering::Relaxed)
        ),
        (0, 6, 3)
    );
}

#[test]
fn work_and_its_classifier_may_panic() {
    sweep((), |foreign| {
        let (semaphore, clock) = (Arc::new(Semaphore::new(1)), ManualClock::new());
        let legs = own(foreign).and(Arc::clone(&semaphore)).and(own(foreign));
        let policy = Policy::builder().on(&clock).max_queue(1).limit(legs).build().unwrap();
        let work = || {
            foreign.call("work");
            async {
                foreign.call("the future of work");
                Err::<(), ()>(())
            }
        };
        let repeat = |_: &Result<(), ()>| {
            foreign.call("whether to repeat");
            (Outcome::Failure, Repeat::Backoff)
        };
        let budget = Arc::new(RetryBudget::new(0.0, 1).unwrap());
        let retry = Retry::new(Backoff::default()).seed(1).budget(&budget);
        foreign.arm();
        let mut tasks = Tasks::new(foreign);
        tasks.spawn(async { retry.run_classified(&policy, 1, work, repeat).await.map_err(|_| ()) });
        let held = foreign.step(|| policy.try_admit(1).ok()).flatten();
        tasks.spawn(policy.admit(1));
        for _ in 0..2 {
            tasks.spawn(async { retry.run_classified(&policy, 1, work, repeat).await.map_err(|_| ()) });
        }
        tasks.repoll();
        foreign.drop(held);
        tasks.run();
        tasks.end(&clock);
        assert_eq!(policy.waiting(), 0);
        untouched(&semaphore, 1);
    });
}

fn breaker(clock: &ManualClock, listener: impl Fn(BreakerState) + Send + Sync + 'static) -> CircuitBreaker {
    CircuitBreaker::builder()
        .count_window(4)
        .minimum_calls(2)
        .failure_rate(0.5)
        .probes(1)
        .open_for(OpenTime::fixed(Duration::from_millis(50)))
        .probe_timeout(Duration::from_secs(3_600))
        .on_event(move |event| listener(event.to))
        .on(clock)
        .build()
        .unwrap()
}

fn trip(breaker: &CircuitBreaker) {
    for _ in 0..2 {
        breaker.try_admit(1).unwrap().finish(Outcome::Failure);
    }
}

#[test]
fn a_listener_that_panics_loses_no_probe() {
    let clock = ManualClock::new();
    let armed = Arc::new(AtomicBool::new(true));
    let once = Arc::clone(&armed);
    let breaker = breaker(&clock, move |to| {
        if to == BreakerState::HalfOpen && once.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new("a listener panicked"));
        }
    });
    trip(&breaker);
    clock.advance(Duration::from_millis(50));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(breaker.try_admit(1)))).is_err());
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    let probe = breaker.try_admit(1).expect("the probe came back");
    probe.finish(Outcome::Success);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_listener_that_panics_at_every_change_changes_no_state() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock, |_| resume_unwind(Box::new("a listener panicked")));
    let panics = |work: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    panics(&|| trip(&breaker));
    assert_eq!(breaker.state(), BreakerState::Open);
    clock.advance(Duration::from_millis(50));
    panics(&|| drop(breaker.try_admit(1)));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    let probe = breaker.try_admit(1).unwrap();
    panics(&|| breaker.trip(Duration::from_secs(1)));
    assert_eq!(breaker.state(), BreakerState::Open);
    probe.finish(Outcome::Success);
    assert_eq!(breaker.state(), BreakerState::Open, "a result of an older trial");
    clock.advance(Duration::from_secs(1));
    panics(&|| drop(breaker.try_admit(1)));
    let probe = breaker.try_admit(1).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| probe.finish(Outcome::Success))).is_err());
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_listener_is_notified_even_during_a_panic() {
    let clock = ManualClock::new();
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let breaker = breaker(&clock, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    struct Fails<'a>(&'a CircuitBreaker);
    impl Drop for Fails<'_> {
        fn drop(&mut self) {
            trip(self.0);
        }
    }
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _fails = Fails(&breaker);
        resume_unwind(Box::new("a task panicked"));
    }));
    assert!(caught.is_err());
    assert_eq!((breaker.state(), told.load(Ordering::Relaxed)), (BreakerState::Open, 1));
}

#[test]
fn a_classifier_that_panics_gives_its_probe_back() {
    let clock = ManualClock::new();
    let armed = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&armed);
    let breaker = CircuitBreaker::builder()
        .count_window(4)
        .minimum_calls(2)
        .probes(1)
        .open_for(OpenTime::fixed(Duration::from_secs(1)))
        .classifier(move |outcome, _| match on.load(Ordering::Relaxed) {
            true => resume_unwind(Box::new("a classifier panicked")),
            false => outcome,
        })
        .on(&clock)
        .build()
        .unwrap();
    trip(&breaker);
    clock.advance(Duration::from_secs(1));
    let probe = breaker.try_admit(1).unwrap();
    armed.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| probe.finish(Outcome::Success))).is_err());
    armed.store(false, Ordering::Relaxed);
    assert!(breaker.try_admit(1).is_ok(), "as if the outcome were ignored");
}

#[test]
fn classifiers_and_listeners_may_panic() {
    let verbs = [
        "calls",
        "waiters",
        "trip",
        "hold_off",
        "force_open",
        "disable",
        "metrics_only",
    ];
    for verb in verbs {
        sweep(verb, |foreign| {
            let clock = ManualClock::new();
            let breaker = CircuitBreaker::builder()
                .count_window(4)
                .minimum_calls(2)
                .failure_rate(0.5);
            let breaker = breaker.probes(1).probe_timeout(36_000 * SECOND).on(&clock);
            let breaker = breaker.open_for(OpenTime::computed(move |_| {
                foreign.call("open time");
                SECOND
            }));
            let breaker = breaker
                .on_event(move |_| foreign.call("listener"))
                .classifier(move |outcome, _| {
                    foreign.call("classifier");
                    outcome
                });
            let (breaker, semaphore) = (Arc::new(breaker.build().unwrap()), Arc::new(Semaphore::new(PERMITS)));
            let legs = own(foreign).and(Arc::clone(&semaphore)).and(Arc::clone(&breaker));
            let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
            foreign.arm();
            let mut tasks = Tasks::new(foreign);
            for _ in 0..3 {
                let permit = foreign.step(|| policy.try_admit(1).ok()).flatten();
                if let Some(permit) = permit {
                    foreign.step(|| permit.finish(Outcome::Failure));
                }
            }
            if verb == "waiters" {
                for _ in 0..3 {
                    tasks.spawn(async {
                        if let Ok(permit) = policy.admit(1).await {
                            permit.finish(Outcome::Failure);
                        }
                    });
                }
            }
            foreign.step(|| match verb {
                "trip" => breaker.trip(SECOND),
                "hold_off" => breaker.hold_off(SECOND),
                "force_open" => breaker.force_open(),
                "disable" => breaker.disable(),
                "metrics_only" => breaker.metrics_only(),
                _ => {}
            });
            foreign.step(|| clock.advance(2 * SECOND));
            tasks.run();
            for outcome in [Outcome::Success, Outcome::Failure] {
                let permit = foreign.step(|| policy.try_admit(1).ok()).flatten();
                if let Some(permit) = permit {
                    foreign.step(|| permit.finish(outcome));
                }
            }
            if matches!(verb, "force_open" | "disable" | "metrics_only") {
                foreign.step(|| breaker.reset());
                foreign.disarm();
                breaker.reset();
            }
            tasks.end(&clock);
            // A probe that is lost would come back only after its time-out.
            clock.advance(100 * SECOND);
            for outcome in [Outcome::Ignored, Outcome::Success] {
                policy.try_admit(1).expect("the next caller is served").finish(outcome);
            }
            assert_eq!(policy.waiting(), 0);
            untouched(&semaphore, PERMITS);
        });
    }
}
