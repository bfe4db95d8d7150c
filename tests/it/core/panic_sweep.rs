//! Users' code panics at the k-th call into it, for every k, in every public operation that calls any. Afterwards our limiters
//! are as after an outcome that is ignored, nothing is out, and the next caller is served.
//!
//! A situation builds everything anew around one [`Foreign`], which stands behind all that a user brings: wakers, loads, limiters,
//! keys. It takes its steps as separate callers would, each caught by itself, and then looks at what is left.
//! [`sweep`] runs it for each k until a run makes no more calls, in three ways: the k-th call panics; all from the k-th on do;
//! and these do while permits and futures are dropped by a thread that panics already, where one more panic that goes on would
//! abort the process. A user's own drop never panics during a panic.
//!
//! With `SWEEP_TRACE` set each run and each panic is printed, with its backtrace: an abort prints nothing by itself.
//!
//! The table at the end names what is swept: a file of the sources that calls users' code gets a line.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::panicking;
use std::time::Duration;
use tollgate::keyed::{FairBudget, KeyedRate};
use tollgate::policy::Partitions;
use tollgate::policy::conditional::{Load, Meter, Trigger};
use tollgate::sync::{Place, WaitQueue, Watch, Watchers};
use tollgate::{
    Clock, Demand, Description, Eviction, Inherit, Instant, Keyed, Legs, Limiter, LimiterExt, ManualClock, Order,
    Outcome, Permit, Policy, Quota, Reason, Refusal, Semaphore, Settlement, TokenBucket, Wait,
};

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
    /// Units that the first leg of a policy has admitted, and that were not cancelled.
    taken: AtomicU64,
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
            taken: AtomicU64::new(0),
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
use source::Source;

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
struct Own {
    foreign: &'static Foreign,
    /// Whether it counts what is taken.
    counts: bool,
}

fn own(foreign: &'static Foreign) -> Own {
    Own { foreign, counts: false }
}

impl Limiter for Own {
    type Ticket = u64;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        self.foreign.call("try_reserve");
        let units = demand.ask().count();
        if self.counts {
            self.foreign.taken.fetch_add(units, SeqCst);
        }
        Ok(units)
    }
    fn cancel(&self, units: u64) {
        if self.counts {
            self.foreign.taken.fetch_sub(units, SeqCst);
        }
        self.foreign.call("cancel");
    }
    fn settle(&self, _: &mut u64, _: &Settlement) -> u32 {
        self.foreign.call("settle");
        0
    }
    fn finish(&self, _: u64, _: Outcome) {
        self.foreign.call("finish");
    }
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        self.foreign.call("look");
        Ok(())
    }
    fn leave(&self, _: &Place) {
        self.foreign.call("leave");
    }
    fn watch(&self, _: &Weak<dyn Watch>) {
        self.foreign.call("watch");
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.foreign.call("describe");
        visit(Description::new("own").as_new(true));
    }
}

/// A load of the user's, which never exceeds its mark.
struct OwnLoad {
    foreign: &'static Foreign,
    watchers: Watchers,
}

impl Load for OwnLoad {
    fn read(&self, _: Instant) -> f64 {
        self.foreign.call("read of a load");
        0.0
    }
    fn falls_to(&self, _: f64, _: Instant) -> Option<Instant> {
        self.foreign.call("falls_to of a load");
        None
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.foreign.call("watch of a load");
        self.watchers.watch(watcher);
    }
}

/// A permit that is cancelled when it is dropped.
struct Cancelled<L: Limiter>(Option<Permit<L>>);

impl<L: Limiter> Drop for Cancelled<L> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Permit::cancel);
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

fn semaphores() {
    let endings = [
        "release", "cancel", "resize", "pause", "add", "close", "time", "abandon",
    ];
    for ending in endings {
        sweep(ending, |foreign| {
            let (semaphore, clock) = (Arc::new(Semaphore::new(PERMITS)), ManualClock::new());
            let deadline = clock.after(clock.now(), SECOND);
            let mut held = Some(semaphore.try_acquire_many(PERMITS as u32).unwrap());
            foreign.arm();
            let mut tasks = Tasks::new(foreign);
            tasks.spawn(semaphore.acquire_many(2));
            tasks.spawn(semaphore.acquire_many(1));
            tasks.spawn(Arc::clone(&semaphore).acquire_owned());
            tasks.spawn(semaphore.acquire_many_until(1, &clock, deadline));
            tasks.spawn(semaphore.until_idle());
            tasks.repoll();
            match ending {
                "release" => foreign.drop(held.take()),
                "cancel" => (0..2).for_each(|i| tasks.cancel(i)),
                "resize" => drop(foreign.step(|| semaphore.set_limit(PERMITS + 2))),
                "pause" => {
                    foreign.step(|| semaphore.set_limit(0));
                    foreign.drop(held.take());
                    foreign.step(|| semaphore.set_limit(PERMITS));
                }
                "add" => drop(foreign.step(|| semaphore.add_permits(1))),
                "close" => drop(foreign.step(|| semaphore.close())),
                "time" => drop(foreign.step(|| clock.advance(2 * SECOND))),
                _ => {
                    foreign.drop(held.take());
                    (0..5).for_each(|i| tasks.cancel(i));
                }
            }
            tasks.run();
            foreign.disarm();
            drop(held);
            semaphore.set_limit(PERMITS);
            tasks.end(&clock);
            match ending {
                "close" => assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0)),
                _ => untouched(&semaphore, PERMITS),
            }
        });
    }
}

/// A blocked thread has no users' code; those that wait beside it do.
fn blocking() {
    sweep((), |foreign| {
        let (semaphore, clock) = (Arc::new(Semaphore::new(PERMITS)), ManualClock::new());
        let policy = Policy::builder()
            .on(&clock)
            .limit(own(foreign))
            .limit(Arc::clone(&semaphore));
        let policy = policy.limit(own(foreign)).build().unwrap();
        let mut tasks = Tasks::new(foreign);
        let held = semaphore.try_acquire_many(PERMITS as u32).unwrap();
        foreign.arm();
        tasks.spawn(semaphore.acquire());
        foreign.drop(held);
        tasks.run();
        for permit in [
            foreign.step(|| semaphore.blocking_acquire().unwrap()),
            foreign.step(|| semaphore.blocking_acquire_timeout(SECOND).unwrap()),
        ] {
            foreign.drop(permit);
        }
        for permit in [
            foreign.step(|| policy.admit_blocking(1).unwrap()),
            foreign.step(|| policy.admit_blocking_timeout(1, SECOND).unwrap()),
        ] {
            foreign.drop(permit);
        }
        tasks.end(&clock);
        untouched(&semaphore, PERMITS);
    });
}

fn timers() {
    for ending in ["advance", "next", "drop", "reset", "run"] {
        sweep(ending, |foreign| {
            let clock = ManualClock::new();
            let at = |seconds| clock.after(clock.now(), seconds * SECOND);
            foreign.arm();
            let mut tasks = Tasks::new(foreign);
            for seconds in [1, 1, 2] {
                tasks.spawn(clock.sleep_until(at(seconds)));
            }
            tasks.repoll();
            match ending {
                "advance" => {
                    foreign.step(|| clock.advance(3 * SECOND));
                }
                "next" => {
                    foreign.step(|| clock.advance_to_next_timer());
                }
                "run" => {
                    foreign.step(|| clock.run(clock.sleep_until(at(3))));
                }
                "reset" => {
                    let mut sleep = Box::pin(clock.sleep_until(at(1)));
                    let source = Source::new(foreign);
                    let waker = source.waker();
                    for seconds in [1, 2] {
                        let until = at(seconds);
                        foreign.step(|| {
                            sleep.reset(until);
                            let _ = sleep.as_mut().poll(&mut Context::from_waker(&waker));
                        });
                    }
                    forget(waker);
                    foreign.drop(sleep);
                }
                _ => (0..3).for_each(|i| tasks.cancel(i)),
            }
            tasks.run();
            tasks.end(&clock);
        });
    }
}

/// Outside any runtime one thread serves all timers: it survives every waker.
fn thread_timer() {
    sweep((), |foreign| {
        struct Tell(mpsc::Sender<()>);
        impl std::task::Wake for Tell {
            fn wake(self: Arc<Self>) {
                let _ = self.0.send(());
            }
        }
        let clock = Clock::real();
        let soon = clock.after(clock.now(), Duration::from_micros(100));
        foreign.arm();
        let mut tasks = Tasks::new(foreign);
        tasks.spawn(clock.sleep_until(soon));
        tasks.spawn(clock.sleep_until(clock.after(soon, 3_600 * SECOND)));
        tasks.repoll();
        tasks.cancel(1);
        // Another waits for a later instant; the first has been woken by then.
        let (tell, told) = mpsc::channel();
        let waker = Waker::from(Arc::new(Tell(tell)));
        let mut told_once = false;
        while !told_once {
            let at = clock.after(clock.now(), Duration::from_micros(200));
            let mut later = Box::pin(clock.sleep_until(at));
            while later.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                told.recv_timeout(20 * SECOND).expect("the timers have ended");
                told_once = true;
            }
        }
        tasks.end(&ManualClock::new());
    });
}

const TOKENS: u64 = 4;

fn quota(burst: u64) -> Quota {
    Quota::per_second(1).burst(burst)
}

/// A policy over two permits and four tokens, among the user's legs.
struct World<L: Limiter + 'static> {
    policy: Policy<L>,
    /// Where others wait for the permits directly.
    direct: Option<Arc<Semaphore>>,
    /// How many permits are held, and how many are free.
    permits: Box<dyn Fn() -> (u64, u64)>,
    tokens: Box<dyn Fn() -> u64>,
    /// Sets how many permits and tokens there are at most.
    resize: Box<dyn Fn(u64, u64)>,
}

/// The legs that most worlds have.
struct Shared {
    clock: ManualClock,
    first: Own,
    last: Own,
    semaphore: Arc<Semaphore>,
    bucket: Arc<TokenBucket>,
}

impl Shared {
    fn new(foreign: &'static Foreign, clock: &ManualClock) -> Self {
        Self {
            clock: clock.clone(),
            first: Own { foreign, counts: true },
            last: own(foreign),
            semaphore: Arc::new(Semaphore::new(PERMITS)),
            bucket: Arc::new(TokenBucket::new(quota(TOKENS)).on(clock)),
        }
    }

    fn permits(&self) -> Arc<Semaphore> {
        Arc::clone(&self.semaphore)
    }

    fn rate(&self) -> Arc<TokenBucket> {
        Arc::clone(&self.bucket)
    }

    fn load(&self) -> Trigger {
        let (foreign, watchers) = (self.first.foreign, Watchers::new());
        Trigger::above(Arc::new(OwnLoad { foreign, watchers }), 0.5).on(&self.clock)
    }

    fn world<L: Limiter + 'static>(&self, policy: Policy<L>) -> World<L> {
        let (looked, resized, rate, bucket) = (self.permits(), self.permits(), self.rate(), self.rate());
        World {
            policy,
            direct: Some(self.permits()),
            permits: Box::new(move || (looked.in_use() as u64, looked.available_permits() as u64)),
            tokens: Box::new(move || rate.available()),
            resize: Box::new(move |permits, tokens| {
                resized.set_limit(permits as usize);
                bucket.set_quota(quota(tokens), Inherit::AsIs);
            }),
        }
    }
}

/// Everything that can happen to the waiters of a policy.
fn policy<L: Limiter + 'static>(make: impl Fn(&Shared) -> World<L>) {
    let endings = [
        "finish",
        "drop",
        "cancel",
        "time",
        "resize",
        "try",
        "newcomers",
        "abandon",
    ];
    for ending in endings {
        sweep(ending, |foreign| {
            let clock = ManualClock::new();
            let world = make(&Shared::new(foreign, &clock));
            let (policy, bypass) = (&world.policy, world.policy.bypass_queue(600 * SECOND));
            let seen = Cell::new(0);
            let admitted = |permit: Permit<_>| {
                seen.set(seen.get() + 1);
                drop::<Permit<&Policy<L>>>(permit);
            };
            foreign.arm();
            let mut held = Vec::new();
            while held.len() < PERMITS
                && let Some(permit) = foreign.step(|| policy.try_admit(1).ok()).flatten()
            {
                seen.set(seen.get() + 1);
                held.push(permit);
            }
            let mut tasks = Tasks::new(foreign);
            tasks.spawn(async { policy.admit(1).await.map(admitted) });
            tasks.spawn(async { policy.admit_timeout(1, 5 * SECOND).await.map(admitted) });
            tasks.spawn(async { policy.admit_owned(1).await.map(|_| seen.set(seen.get() + 1)) });
            tasks.spawn(async { bypass.admit(1).await.map(|_| seen.set(seen.get() + 1)) });
            if let Some(semaphore) = &world.direct {
                tasks.spawn(semaphore.acquire());
            }
            tasks.repoll();
            let is_now = !matches!(ending, "time" | "resize");
            match ending {
                "finish" => {
                    for permit in held.drain(..) {
                        foreign.step(|| permit.finish(Outcome::Failure));
                    }
                }
                "drop" => held.drain(..).for_each(|permit| foreign.drop(permit)),
                "cancel" => {
                    tasks.cancel(0);
                    foreign.drop(held.pop());
                    tasks.cancel(3);
                }
                "time" => {
                    held.drain(..).for_each(|permit| foreign.drop(permit));
                    foreign.step(|| clock.advance(10 * SECOND));
                }
                "resize" => {
                    foreign.step(|| (world.resize)(PERMITS as u64 + 3, TOKENS * 2));
                }
                "try" => {
                    held.drain(..).for_each(|permit| foreign.drop(permit));
                    let tried = foreign.step(|| policy.try_admit(1).ok()).flatten();
                    tasks.spawn(async { policy.admit(1).await.map(admitted) });
                    foreign.drop(Cancelled(tried));
                    if let Some(permit) = foreign.step(|| policy.try_admit(1).ok()).flatten() {
                        seen.set(seen.get() + 1);
                        foreign.drop(permit);
                    }
                }
                "abandon" => {
                    held.drain(..).for_each(|permit| foreign.drop(permit));
                    (0..tasks.list.len()).for_each(|i| tasks.cancel(i));
                }
                _ => {
                    for _ in 0..3 {
                        tasks.spawn(async { policy.admit(1).await.map(admitted) });
                    }
                    held.drain(..).for_each(|permit| foreign.drop(permit));
                }
            }
            tasks.run();
            foreign.disarm();
            drop(held);
            tasks.run();
            if is_now {
                let tokens = (world.tokens)();
                assert!(
                    tokens + seen.get() <= TOKENS,
                    "{tokens} tokens after {} of {TOKENS}",
                    seen.get()
                );
                let taken = foreign.taken.load(SeqCst);
                assert!(
                    taken == 0 || tokens + taken >= TOKENS,
                    "{tokens} tokens after {taken} of {TOKENS}"
                );
            }
            (world.resize)(PERMITS as u64, TOKENS);
            tasks.end(&clock);
            assert_eq!((policy.waiting(), bypass.waiting()), (0, 0));
            assert_eq!((world.permits)(), (0, PERMITS as u64));
            clock.advance(100 * SECOND);
            assert_eq!((world.tokens)(), TOKENS);
            drop(policy.try_admit(PERMITS as u64).expect("the next caller is served"));
        });
    }
}

fn policies_of_a_builder() {
    policy(|shared| {
        let legs = Policy::builder()
            .on(&shared.clock)
            .limit(shared.first)
            .limit(shared.rate());
        let policy = legs.limit(shared.permits()).limit(shared.last).max_queue(3);
        shared.world(policy.eviction(Eviction::Oldest).build().unwrap())
    });
}

fn policies_of_legs() {
    policy(|shared| {
        let legs = [shared.first.boxed(), shared.rate().boxed(), shared.permits().boxed()];
        let legs: Legs = legs.into_iter().chain([shared.last.boxed()]).collect();
        shared.world(Policy::builder().on(&shared.clock).limit(legs).build().unwrap())
    });
}

fn policies_of_a_chain() {
    for newest_first in [false, true] {
        policy(|shared| {
            let legs = shared.first.and(shared.rate()).and(shared.permits()).and(shared.last);
            let builder = Policy::builder().on(&shared.clock);
            let builder = if newest_first {
                builder.order(Order::Lifo)
            } else {
                builder
            };
            shared.world(builder.limit(legs).build().unwrap())
        });
    }
}

fn policies_of_a_box() {
    policy(|shared| {
        let legs = shared.first.and(shared.rate()).and(shared.permits()).and(shared.last);
        let boxed = legs.boxed().and(shared.last.boxed());
        shared.world(Policy::builder().on(&shared.clock).limit(boxed).build().unwrap())
    });
}

fn policies_of_adapters() {
    policy(|shared| {
        let meter = Meter::new(&shared.clock, SECOND);
        let legs = shared.first.named("first");
        let legs = legs.and(meter.watch(shared.rate()));
        let legs = legs.and(shared.last.shadow()).and(shared.last.when(shared.load()));
        let legs = legs.and(Semaphore::new(0).when(shared.load()));
        let legs = legs.and(meter.watch(shared.permits())).and(shared.last);
        shared.world(Policy::builder().on(&shared.clock).limit(legs).build().unwrap())
    });
}

/// Classes of one limit, for each of which a policy waits.
fn partitions() {
    let make: [fn() -> Partitions; 3] = [
        || Partitions::guaranteed(PERMITS, &[0.5, 0.5]).unwrap(),
        || Partitions::lent(PERMITS, 2).unwrap(),
        || Partitions::levels(PERMITS, &[1.0, 0.5]).unwrap(),
    ];
    for make in make {
        sweep((), |foreign| {
            let (clock, shared) = (ManualClock::new(), make());
            let policies = [0, 1].map(|class| {
                let legs = own(foreign).and(Arc::clone(shared.class(class))).and(own(foreign));
                Policy::builder().on(&clock).limit(legs).build().unwrap()
            });
            foreign.arm();
            let held = policies
                .each_ref()
                .map(|policy| foreign.step(|| policy.try_admit(1).ok()).flatten());
            let mut tasks = Tasks::new(foreign);
            for policy in [&policies[0], &policies[1], &policies[0]] {
                tasks.spawn(policy.admit(1));
            }
            tasks.repoll();
            foreign.step(|| shared.set_limit(PERMITS + 1));
            tasks.cancel(0);
            held.into_iter().flatten().for_each(|permit| foreign.drop(permit));
            tasks.run();
            foreign.disarm();
            shared.set_limit(PERMITS);
            tasks.end(&clock);
            assert_eq!(
                (shared.in_use(), policies[0].waiting(), policies[1].waiting()),
                (0, 0, 0)
            );
            assert!(policies.iter().all(|policy| policy.try_admit(1).is_ok()));
        });
    }
}

#[cfg(feature = "channel")]
fn channel_semaphores() {
    use tollgate::ChannelSemaphore;
    for ending in ["release", "resize", "close"] {
        sweep(ending, |foreign| {
            let (clock, semaphore) = (ManualClock::new(), Arc::new(ChannelSemaphore::new(PERMITS)));
            let legs = own(foreign).and(Arc::clone(&semaphore)).and(own(foreign));
            let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
            let mut held = vec![semaphore.try_admit(1).unwrap(), semaphore.try_admit(1).unwrap()];
            foreign.arm();
            let mut tasks = Tasks::new(foreign);
            for _ in 0..3 {
                tasks.spawn(policy.admit(1));
            }
            tasks.repoll();
            match ending {
                "release" => {
                    tasks.cancel(0);
                    held.drain(..).for_each(|permit| foreign.drop(permit));
                }
                "resize" => drop(foreign.step(|| semaphore.set_limit(PERMITS + 2))),
                _ => drop(foreign.step(|| semaphore.close())),
            }
            tasks.run();
            foreign.disarm();
            drop(held);
            if ending != "close" {
                semaphore.set_limit(PERMITS);
            }
            tasks.end(&clock);
            assert_eq!((policy.waiting(), semaphore.in_use()), (0, 0));
            if ending != "close" {
                drop(policy.try_admit(PERMITS as u64).expect("the next caller is served"));
            }
        });
    }
}

/// Each verb of a permit, at legs of which several hold something, with others who wait for that.
fn verbs() {
    for verb in ["finish", "drop", "forget", "settle", "cancel", "ask"] {
        for boxed in [false, true] {
            sweep((verb, boxed), |foreign| {
                let clock = ManualClock::new();
                let [front, back] = [(); 2].map(|()| Arc::new(Semaphore::new(PERMITS)));
                let bucket = Arc::new(TokenBucket::new(quota(TOKENS)).on(&clock));
                let legs = own(foreign).and(Arc::clone(&front));
                let legs = legs.and(own(foreign)).and(Arc::clone(&bucket)).and(Arc::clone(&back));
                let legs = legs.and(own(foreign));
                let gate = Policy::builder().on(&clock);
                let gate = match boxed {
                    true => gate.limit(legs.boxed()).build().unwrap(),
                    false => {
                        let gate = Policy::builder()
                            .on(&clock)
                            .limit(own(foreign))
                            .limit(Arc::clone(&front));
                        let gate = gate.limit(own(foreign));
                        let gate = gate
                            .limit(Arc::clone(&bucket))
                            .limit(Arc::clone(&back))
                            .limit(own(foreign));
                        Policy::builder()
                            .on(&clock)
                            .limit(gate.build().unwrap().boxed())
                            .build()
                            .unwrap()
                    }
                };
                foreign.arm();
                let permit = foreign.step(|| gate.try_admit(2).ok()).flatten();
                let mut tasks = Tasks::new(foreign);
                tasks.spawn(front.acquire_many(2));
                tasks.spawn(back.acquire_many(2));
                let mut lost = 0;
                match (verb, permit) {
                    ("finish", Some(permit)) => drop(foreign.step(|| permit.finish(Outcome::Failure))),
                    ("forget", Some(permit)) => {
                        lost = 2;
                        foreign.step(|| permit.forget());
                    }
                    ("settle", Some(mut permit)) => {
                        foreign.step(|| permit.settle(tollgate::Cost::new("calls"), 0));
                        foreign.drop(permit);
                    }
                    ("cancel", permit) => foreign.drop(Cancelled(permit)),
                    (_, permit) => {
                        // Refused by one leg: those before it give back.
                        foreign.step(|| gate.try_admit(1).map_err(|refusal| refusal.retry_after()).ok());
                        foreign.step(|| gate.limiter().describe(&mut |_| {}));
                        foreign.drop(permit);
                    }
                }
                foreign.disarm();
                if lost > 0 {
                    // What is forgotten is gone for good, at each leg alike.
                    assert_eq!((front.limit(), back.limit()), (PERMITS - lost, PERMITS - lost));
                    [&front, &back]
                        .into_iter()
                        .for_each(|semaphore| semaphore.add_permits(lost));
                }
                tasks.end(&clock);
                assert_eq!((front.in_use(), back.in_use()), (0, 0));
                assert_eq!(
                    (front.available_permits(), back.available_permits()),
                    (PERMITS, PERMITS)
                );
                clock.advance(100 * SECOND);
                assert_eq!(bucket.available(), TOKENS);
                drop(gate.try_admit(PERMITS as u64).expect("the next caller is served"));
            });
        }
    }
}

fn runs() {
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
        let fallback = |_: Refusal| {
            foreign.call("fallback");
            async {
                foreign.call("the future of a fallback");
                Ok(())
            }
        };
        let classify = |_: &Result<(), ()>| {
            foreign.call("the class of a result");
            Outcome::Ignored
        };
        foreign.arm();
        let mut tasks = Tasks::new(foreign);
        tasks.spawn(async { policy.run(1, work).await.map_err(|_| ()) });
        tasks.spawn(async { policy.run_classified(1, work, classify).await.map_err(|_| ()) });
        let held = foreign.step(|| policy.try_admit(1).ok()).flatten();
        tasks.spawn(policy.admit(1));
        for _ in 0..2 {
            tasks.spawn(async { policy.run(1, work).or_else(fallback).await });
        }
        tasks.repoll();
        foreign.drop(held);
        tasks.run();
        tasks.end(&clock);
        assert_eq!(policy.waiting(), 0);
        untouched(&semaphore, 1);
    });
}

/// A key all of whose traits are users' code.
#[derive(Debug)]
struct OwnKey(u64, ForeignRef);

#[derive(Clone, Copy)]
struct ForeignRef(&'static Foreign);

impl fmt::Debug for ForeignRef {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Clone for OwnKey {
    fn clone(&self) -> Self {
        self.1.0.call("clone of a key");
        Self(self.0, self.1)
    }
}
impl PartialEq for OwnKey {
    fn eq(&self, other: &Self) -> bool {
        self.1.0.call("eq of a key");
        self.0 == other.0
    }
}
impl Eq for OwnKey {}
impl Hash for OwnKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.0.call("hash of a key");
        self.0.hash(state);
    }
}
impl Drop for OwnKey {
    fn drop(&mut self) {
        self.1.0.dropped("drop of a key");
    }
}

/// Runs `uses` with keys that are not dropped in the run.
fn keys(foreign: &'static Foreign) -> &'static [OwnKey; 6] {
    Box::leak(Box::new([0, 1, 2, 3, 4, 5].map(|key| OwnKey(key, ForeignRef(foreign)))))
}

fn keyed_limiters() {
    const MOST: usize = 4;
    struct Made(u64, Own, Semaphore);
    impl Drop for Made {
        fn drop(&mut self) {
            self.1.foreign.dropped("drop of a limiter");
        }
    }
    impl Limiter for Made {
        type Ticket = <Semaphore as Limiter>::Ticket;
        fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
            self.2.try_reserve(demand)
        }
        fn cancel(&self, ticket: Self::Ticket) {
            self.2.cancel(ticket);
        }
        fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
            self.2.finish(ticket, outcome);
        }
        fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
            self.2.look(demand)
        }
        fn leave(&self, place: &Place) {
            self.2.leave(place);
        }
        fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
            self.1.describe(&mut |_| {});
            self.2.describe(visit);
        }
    }
    for siphash in [false, true] {
        sweep(siphash, |foreign| {
            let map = Keyed::new(MOST, move |key: &OwnKey| {
                foreign.call("maker");
                Made(key.0, own(foreign), Semaphore::new(1))
            });
            let map = if siphash { map.siphash() } else { map };
            let keys = keys(foreign);
            foreign.arm();
            let first = foreign.step(|| map.get(&keys[0]).ok()).flatten();
            let held = first
                .as_ref()
                .and_then(|first| foreign.step(|| first.try_admit_owned(1).ok()))
                .flatten();
            for key in keys {
                let entry = foreign.step(|| map.get(key).ok()).flatten();
                foreign.drop(entry);
                let entry = foreign.step(|| map.entry(key).ok()).flatten();
                foreign.drop(entry);
                let entry = foreign.step(|| map.peek(key)).flatten();
                foreign.drop(entry);
            }
            let gone = foreign.step(|| map.remove(&keys[5])).flatten();
            foreign.drop(gone);
            foreign.step(|| map.evict_as_new());
            foreign.disarm();
            assert!(map.len() <= MOST);
            // A key whose permit is held has not got another limiter.
            if let (Some(first), Some(_)) = (&first, &held) {
                assert!(Arc::ptr_eq(first, &map.get(&keys[0]).unwrap()));
            }
            foreign.arm();
            foreign.drop(held);
            foreign.drop(first);
            foreign.disarm();
            map.evict_as_new();
            assert_eq!(map.len(), 0, "an entry is kept");
            let all: Vec<_> = keys[..MOST].iter().map(|key| map.get(key).unwrap()).collect();
            for (limiter, key) in all.iter().zip(keys) {
                assert_eq!(limiter.0, key.0, "the limiter of another key");
                assert!(limiter.try_admit(1).is_ok());
            }
        });
    }
}

fn keyed_rates() {
    sweep((), |foreign| {
        const MOST: usize = 4;
        let clock = ManualClock::new();
        let (rates, keys) = (KeyedRate::new(MOST, quota(TOKENS)).on(&clock), keys(foreign));
        foreign.arm();
        let mut taken = [0; 6];
        for _ in 0..2 {
            for (key, taken) in keys.iter().zip(&mut taken) {
                *taken += u64::from(foreign.step(|| rates.try_acquire(key, 1).is_ok()).unwrap_or(false));
                foreign.step(|| rates.available(key));
            }
        }
        foreign.disarm();
        assert!(rates.len() <= MOST);
        for (key, taken) in keys.iter().zip(taken).filter(|(_, taken)| *taken > 0) {
            assert!(rates.available(key) + taken <= TOKENS);
        }
        clock.advance(100 * SECOND);
        assert!(keys[..MOST].iter().all(|key| rates.try_acquire(key, TOKENS).is_ok()));
        forget(rates);
    });
}

// ---- Limiters of which users write more than the admission

/// Permits of the user's, with our queue. It loses no place and no permit when it panics: it panics before it takes and after it has
/// given.
struct OwnQueue {
    foreign: &'static Foreign,
    /// The limit, and the permits in use.
    state: Mutex<(u64, u64)>,
    queue: WaitQueue,
}

impl OwnQueue {
    fn new(foreign: &'static Foreign, limit: u64) -> Self {
        Self {
            foreign,
            state: Mutex::new((limit, 0)),
            queue: WaitQueue::new("own"),
        }
    }

    fn set_limit(&self, limit: u64) {
        self.state.lock().unwrap().0 = limit;
        self.queue.changed();
    }

    fn permits(&self) -> (u64, u64) {
        let (limit, in_use) = *self.state.lock().unwrap();
        (in_use, limit - in_use)
    }

    fn judge(&self, units: u64, ahead: u64) -> Result<(), Refusal> {
        let (limit, in_use) = *self.state.lock().unwrap();
        match in_use + units + ahead <= limit {
            true => Ok(()),
            false => Err(Refusal::new(Reason::Saturated, "own", Wait::EVENT)),
        }
    }
}

impl Limiter for OwnQueue {
    type Ticket = u64;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        self.foreign.call("try_reserve of a queue");
        self.queue.check(demand, |units, ahead| self.judge(units, ahead))?;
        self.judge(demand.units(), 0)?;
        self.state.lock().unwrap().1 += demand.units();
        Ok(demand.units())
    }
    fn cancel(&self, units: u64) {
        self.state.lock().unwrap().1 -= units;
        self.queue.notify();
        self.foreign.call("cancel of a queue");
    }
    fn finish(&self, units: u64, _: Outcome) {
        self.cancel(units);
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.foreign.call("look of a queue");
        self.queue.look(demand, |units, ahead| self.judge(units, ahead))
    }
    fn leave(&self, place: &Place) {
        self.queue.leave(place);
        self.foreign.call("leave of a queue");
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("own"));
    }
}

fn own_queues() {
    policy(|shared| {
        let queue = Arc::new(OwnQueue::new(shared.first.foreign, PERMITS as u64));
        let legs = shared.first.and(shared.rate()).and(Arc::clone(&queue)).and(shared.last);
        let (resized, bucket) = (Arc::clone(&queue), shared.rate());
        World {
            direct: None,
            permits: Box::new(move || queue.permits()),
            resize: Box::new(move |permits, tokens| {
                resized.set_limit(permits);
                bucket.set_quota(quota(tokens), Inherit::AsIs);
            }),
            ..shared.world(Policy::builder().on(&shared.clock).limit(legs).build().unwrap())
        }
    });
}

/// Threads that are blocked at a policy while legs panic, beside tasks that wait there.
fn blocked_threads() {
    for ending in ["drop", "time-out"] {
        sweep(ending, |foreign| {
            let (semaphore, clock) = (Arc::new(Semaphore::new(PERMITS)), ManualClock::new());
            let legs = own(foreign).and(Arc::clone(&semaphore)).and(own(foreign));
            let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
            let mut tasks = Tasks::new(foreign);
            let held = semaphore.try_acquire_many(PERMITS as u32).unwrap();
            foreign.arm();
            tasks.spawn(semaphore.acquire());
            let (tell, told) = mpsc::channel();
            let (blocked, waits) = (policy.clone(), SECOND);
            let thread = std::thread::spawn(move || {
                let block = || match ending {
                    "drop" => blocked.admit_blocking(1).map(drop).is_ok(),
                    _ => blocked.admit_blocking_timeout(1, waits).map(drop).is_ok(),
                };
                foreign.step(block);
                tell.send(()).unwrap();
            });
            while policy.waiting() == 0 && !thread.is_finished() {
                std::thread::yield_now();
            }
            tasks.spawn(policy.admit(1));
            tasks.repoll();
            if ending == "time-out" {
                foreign.step(|| clock.advance(2 * SECOND));
            }
            foreign.drop(held);
            told.recv_timeout(20 * SECOND).expect("the thread is blocked for good");
            thread.join().unwrap();
            tasks.run();
            tasks.end(&clock);
            assert_eq!(policy.waiting(), 0);
            untouched(&semaphore, PERMITS);
        });
    }
}

/// A clock of the user's inside a limiter of governor.
#[cfg(feature = "governor")]
fn governed_limiters() {
    use governor::{Quota, RateLimiter};
    use std::num::NonZeroU32;
    #[derive(Clone)]
    struct OwnClock(&'static Foreign, Clock);
    impl governor::clock::Clock for OwnClock {
        type Instant = <Clock as governor::clock::Clock>::Instant;
        fn now(&self) -> Self::Instant {
            self.0.call("now of a clock");
            governor::clock::Clock::now(&self.1)
        }
    }
    sweep((), |foreign| {
        let (semaphore, clock) = (Arc::new(Semaphore::new(PERMITS)), ManualClock::new());
        let burst = NonZeroU32::new(PERMITS as u32).unwrap();
        let limiter = RateLimiter::direct_with_clock(
            Quota::per_second(burst).allow_burst(burst),
            OwnClock(foreign, clock.clock().clone()),
        );
        let legs = own(foreign)
            .and(Arc::clone(&semaphore))
            .and(tollgate::Governed::new(limiter).on(&clock));
        let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
        foreign.arm();
        let mut tasks = Tasks::new(foreign);
        for _ in 0..4 {
            tasks.spawn(policy.admit(1));
        }
        tasks.spawn(policy.admit_timeout(1, 5 * SECOND));
        tasks.repoll();
        tasks.cancel(2);
        foreign.step(|| clock.advance(SECOND));
        tasks.run();
        tasks.end(&clock);
        assert_eq!(policy.waiting(), 0);
        untouched(&semaphore, PERMITS);
        clock.advance(100 * SECOND);
        drop(policy.try_admit(1).expect("the next caller is served"));
    });
}

/// Shares of one budget, for each of which a policy waits.
fn fair_budgets() {
    for ending in ["cancel", "settle", "leave", "time"] {
        sweep(ending, |foreign| {
            let clock = ManualClock::new();
            let budget = FairBudget::new(quota(TOKENS)).on(&clock);
            let shares = [(); 2].map(|()| Arc::new(budget.share()));
            let policies = shares.each_ref().map(|share| {
                let legs = own(foreign).and(Arc::clone(share)).and(own(foreign));
                Policy::builder().on(&clock).limit(legs).build().unwrap()
            });
            let other = budget.share();
            other.try_acquire(1).unwrap();
            foreign.arm();
            let held = foreign
                .step(|| policies[0].try_admit(1).ok())
                .flatten()
                .map(|held| Cancelled(Some(held)));
            let settled = foreign.step(|| policies[1].try_admit(2).ok()).flatten();
            let mut tasks = Tasks::new(foreign);
            for policy in [&policies[0], &policies[1], &policies[0]] {
                tasks.spawn(policy.admit(2));
            }
            tasks.repoll();
            match (ending, held, settled) {
                ("settle", held, Some(mut permit)) => {
                    foreign.step(|| permit.settle(tollgate::Cost::new("calls"), 0));
                    foreign.drop((held, permit));
                }
                ("cancel", held, permit) => {
                    foreign.drop(held);
                    tasks.cancel(0);
                    foreign.drop(permit);
                }
                ("leave", held, permit) => {
                    foreign.drop(other);
                    foreign.drop((held, permit));
                }
                (_, held, permit) => {
                    foreign.step(|| clock.advance(10 * SECOND));
                    foreign.drop((held, permit));
                }
            }
            tasks.run();
            tasks.end(&clock);
            assert_eq!(policies.each_ref().map(Policy::waiting), [0, 0]);
            // Each share is full in the end, and holds no more than its burst.
            clock.advance(100 * SECOND);
            assert_eq!(shares.each_ref().map(|share| share.available()), [TOKENS; 2]);
        });
    }
}

/// Each line: a test, the situations that it sweeps, and the files of the sources that call users' code there.
macro_rules! table {
    ($($(#[$when:meta])* $test:ident: $situations:ident in [$($file:literal),*];)*) => {
        $($(#[$when])* #[test] fn $test() { $situations(); })*
    };
}

table! {
    wakers_of_a_semaphore_may_panic: semaphores in [
        "semaphore/acquire.rs", "semaphore/atomic.rs", "semaphore/watchers.rs", "sync/wake.rs"
    ];
    blocked_threads_survive_the_panics_of_others: blocking in ["policy/policy.rs"];
    wakers_of_timers_may_panic: timers in ["time/manual.rs", "time/sleep.rs"];
    wakers_of_the_timer_thread_may_panic: thread_timer in ["time/thread_timer.rs"];
    legs_of_a_builder_may_panic: policies_of_a_builder in ["policy/driver.rs", "sync/wait_queue.rs"];
    legs_in_a_list_may_panic: policies_of_legs in ["core/legs.rs"];
    legs_of_a_chain_may_panic: policies_of_a_chain in ["core/tuple.rs", "semaphore/limiter.rs"];
    legs_in_a_box_may_panic: policies_of_a_box in ["core/legs.rs"];
    legs_in_adapters_may_panic: policies_of_adapters in ["core/conditional/mod.rs"];
    legs_beside_partitions_may_panic: partitions in ["policy/partitions.rs"];
    #[cfg(feature = "channel")]
    legs_beside_a_channel_semaphore_may_panic: channel_semaphores in [];
    any_verb_of_a_permit_may_panic: verbs in ["core/permit.rs"];
    work_and_its_fallback_may_panic: runs in ["policy/run.rs"];
    keys_and_makers_may_panic: keyed_limiters in ["keyed/map.rs", "keyed/hashing.rs"];
    keys_of_rates_may_panic: keyed_rates in ["keyed/rate.rs"];
    queues_of_own_limiters_may_panic: own_queues in [];
    legs_may_panic_while_threads_are_blocked: blocked_threads in [];
    #[cfg(feature = "governor")]
    clocks_of_governor_may_panic: governed_limiters in ["governed.rs"];
    legs_beside_a_fair_share_may_panic: fair_budgets in [];
}
