//! The wake-up that calls all: a limiter that has loosened (a cancel, a settle, a raised quota) notifies every listener.
//!
//! [`Notify`] keeps the listeners, `Notified` is what a listener does, and a `Listener` is the handle that connects the two.
//! Below them is the order of calls on one thread: one at a time, and after the last step of a change.
//!
//! # Memory ordering
//! The notifier changes the limiter's state and then reads `armed`; the listener writes `armed` and then reads the
//! state. Either the notifier sees the listener, or the listener sees the change: both sides put a sequentially
//! consistent fence between their two steps.

use super::shim::atomic::{AtomicBool, Ordering, fence};
use super::shim::{Mutex, thread_local};
use super::wake::{PanicCollector, quietly};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

/// Notifies waiting policies that a limiter has loosened. Without listeners a notification costs one fence.
///
/// ```
/// # use tollgate::sync::Notify;
/// # use tollgate::{Ask, ClockReading, Demand, Limiter, LimiterExt, Outcome, Policy, ReadyAt, Reason, Refusal, Wait};
/// # use std::sync::atomic::{AtomicBool, Ordering};
/// /// A switch that an operator turns on.
/// #[derive(Default)]
/// struct Switch { on: AtomicBool, notify: Notify }
/// impl Switch {
///     fn turn_on(&self) {
///         self.on.store(true, Ordering::Release);
///         self.notify.notify_all(); // Waiting policies look again.
///     }
/// }
/// # impl Limiter for Switch {
/// #     type Ticket = ();
/// #     fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
/// #         if self.on.load(Ordering::Acquire) { return Ok(()) }
/// #         Err(Refusal::new(Reason::Saturated, "switch", demand.units(), Wait::Event))
/// #     }
/// #     fn cancel(&self, _: (), _: &ClockReading) {}
/// #     fn finish(&self, _: (), _: Outcome, _: &ClockReading) {}
/// #     fn forget(&self, _: ()) {}
/// #     fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn tollgate::sync::WaitQueue)) {}
/// #     fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
/// #         demand.listen(&self.notify);
/// #         if self.on.load(Ordering::Acquire) { ReadyAt::NOW } else { ReadyAt::on_event("switch") }
/// #     }
/// # }
/// let policy = Policy::new(Switch::default());
/// tollgate::ManualClock::new().run(async {
///     let (admitted, ()) = futures::join!(policy.admit(1), async { policy.limiter().turn_on() });
///     assert!(admitted.is_ok());
/// });
/// ```
#[derive(Debug, Default)]
pub struct Notify {
    armed: AtomicBool,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    /// The listeners of the next notification.
    next: Listeners,
    /// The listeners of the next change of settings. A plain notification leaves them: a policy that it has called may not listen
    /// again before the settings change.
    changes: Listeners,
}

/// Listeners, each once, in the order in which they came.
#[derive(Debug, Default)]
struct Listeners {
    list: Vec<Listener>,
    /// The address of each: it is not used again as long as a [`Listener`] of it is kept.
    known: BTreeSet<usize>,
}

impl Listeners {
    fn add(&mut self, watcher: &Listener) {
        if !self.known.insert(watcher.address()) {
            return;
        }
        if self.list.len() == self.list.capacity() {
            let known = &mut self.known;
            self.list
                .retain(|watcher| watcher.is_alive() || !known.remove(&watcher.address()));
        }
        self.list.push(watcher.clone());
    }
}

impl Notify {
    /// A `Notify` without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener, which is called at the next notification, once.
    pub(crate) fn listen(&self, watcher: &Listener) {
        let mut lists = self.lists.lock();
        lists.next.add(watcher);
        lists.changes.add(watcher);
        // Relaxed: the fence orders it before the listener's next read of the limiter. Pairs with (F) in `notify_all`.
        self.armed.store(true, Ordering::Relaxed);
        drop(lists);
        fence(Ordering::SeqCst);
    }

    /// Calls all listeners, whichever of them panic; then resumes the first panic. Call it after the change, outside every lock.
    #[inline]
    pub fn notify_all(&self) {
        self.fence();
        if self.armed.load(Ordering::Relaxed) {
            self.notify_slow();
        }
    }

    /// Calls all listeners after a change of settings: a policy judges all of its waiters anew, not its head alone, and refuses
    /// those that no instant can admit any more.
    pub fn notify_reconfigured(&self) {
        self.fence();
        let lists = {
            let mut lists = self.lists.lock();
            self.armed.store(false, Ordering::Relaxed);
            mem::take(&mut *lists)
        };
        // These are all listeners.
        Self::call(lists.changes, true);
    }

    #[inline]
    fn fence(&self) {
        // (F) The change that is announced comes before this fence, the look for listeners after it.
        fence(Ordering::SeqCst);
    }

    #[cold]
    fn notify_slow(&self) {
        let listeners = {
            let mut lists = self.lists.lock();
            self.armed.store(false, Ordering::Relaxed);
            mem::take(&mut lists.next)
        };
        Self::call(listeners, false);
    }

    fn call(listeners: Listeners, anew: bool) {
        let mut panics = PanicCollector::default();
        for watcher in listeners.list {
            panics.run(|| watcher.call(anew));
        }
        panics.end();
    }
}

/// A listener's action: it looks again when it is notified. It runs outside every lock.
pub(crate) trait Notified: Send + Sync + 'static {
    /// Something that might admit a waiter has happened.
    fn notified(self: Arc<Self>);

    /// Notes at once that it is notified, of a change of settings if `anew`, before [`notified`](Self::notified) runs. It must not
    /// call anything.
    fn note(&self, anew: bool) {
        let _ = anew;
    }
}

/// A handle by which a limiter notifies a [`Notified`], if it still lives.
#[derive(Clone)]
pub(crate) struct Listener(Weak<dyn Notified>);

impl Listener {
    pub(crate) fn new<W: Notified>(watch: Weak<W>) -> Self {
        Self(watch)
    }

    /// Where the watch lives: no other has the same address as long as this handle is kept.
    fn address(&self) -> usize {
        self.0.as_ptr().cast::<()>() as usize
    }

    /// True while the watch lives.
    fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Calls it, `anew` for a change of settings. While another call runs on this thread, it is deferred until that one
    /// has returned. So queues that wake each other do not pile up on the stack.
    fn call(&self, anew: bool) {
        if let Some(watch) = self.0.upgrade() {
            watch.note(anew);
            call(watch);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// The calls that wait for the one that is running on this thread.
#[derive(Default)]
struct Later {
    /// One is running, or waits for the last of several steps.
    busy: bool,
    /// Kept when it is empty: no call allocates.
    calls: VecDeque<Arc<dyn Notified>>,
}

impl Later {
    /// The capacity of the list that is kept.
    const KEPT: usize = 64;
}

thread_local! {
    static LATER: RefCell<Later> = RefCell::default();
    /// True while this thread runs the change of a [`defer`].
    // The models' macro knows no `const`.
    #[allow(clippy::missing_const_for_thread_local)]
    static DEFERRING: Cell<bool> = Cell::new(false);
}

// Read at every end of a permit of several legs: without a look whether it has been made.
#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
thread_local! {
    /// Whether this thread is in [`together`].
    static STEPS: Cell<Steps> = const { Cell::new(Steps::Apart) };
}
#[cfg(any(tollgate_loom, tollgate_shuttle))]
thread_local! {
    static STEPS: Cell<Steps> = Cell::new(Steps::Apart);
}

#[derive(Clone, Copy, PartialEq)]
enum Steps {
    Apart,
    Together,
    /// A call waits for the last step, and none is running that would make it.
    TogetherCalled,
}

/// Runs `change`, whose steps are one change: the calls that they cause are made after the last. A listener sees all of the
/// change, also when it panics. Costs two writes when no call is caused.
///
/// **Deadlock**: a step that blocks until a waiter is served which an earlier step has freed: that waiter is notified after the
/// last step. The steps are limiters' calls, which [must not block](crate::core::limiter).
#[inline(always)]
pub(crate) fn together<R>(change: impl FnOnce() -> R) -> R {
    let end = EndOfSteps::begin(true);
    let result = change();
    end.reached();
    result
}

/// The same for a change whose result must not be lost: a panic of a listener ends here. A reservation has no part in it.
#[inline(always)]
pub(crate) fn together_quietly<R>(change: impl FnOnce() -> R) -> R {
    let end = EndOfSteps::begin(true);
    let result = change();
    end.reached_quietly();
    result
}

/// The steps that this thread is taking end where this is dropped, unless they are part of others.
pub(crate) struct EndOfSteps {
    outermost: bool,
}

impl EndOfSteps {
    /// Steps begin, if `has_steps`: [`together`] for a change that is to be inlined, as no closure is for certain.
    #[inline(always)]
    pub(crate) fn begin(has_steps: bool) -> Self {
        let begin = |steps: &Cell<Steps>| {
            let outermost = steps.get() == Steps::Apart;
            if outermost {
                steps.set(Steps::Together);
            }
            outermost
        };
        Self {
            outermost: has_steps && STEPS.try_with(begin).unwrap_or(false),
        }
    }

    /// None of the steps has panicked.
    #[inline(always)]
    pub(crate) fn reached(self) {
        self.end(false);
    }

    /// The same for steps whose result must not be lost: see [`together_quietly`].
    #[inline(always)]
    pub(crate) fn reached_quietly(self) {
        self.end(true);
    }

    #[inline(always)]
    fn end(self, quiet: bool) {
        let outermost = self.outermost;
        mem::forget(self);
        if outermost {
            end_steps(quiet);
        }
    }
}

impl Drop for EndOfSteps {
    /// The end of a panic.
    #[inline(always)]
    fn drop(&mut self) {
        if self.outermost {
            end_steps_in_panic();
        }
    }
}

#[inline(always)]
fn end_steps(quiet: bool) {
    if let Ok(Steps::TogetherCalled) = STEPS.try_with(|steps| steps.replace(Steps::Apart)) {
        call_after_steps(quiet);
    }
}

#[cold]
#[inline(never)]
fn end_steps_in_panic() {
    end_steps(false);
}

#[cold]
#[inline(never)]
fn call_after_steps(quiet: bool) {
    let mut panics = PanicCollector::default();
    call_rest(&mut panics);
    if quiet {
        quietly(|| panics.end());
    } else {
        panics.end();
    }
}

/// Has the calls of this thread wait for the last of the steps that it is taking. False when it takes none.
fn wait_for_last_step() -> bool {
    let within = |steps: &Cell<Steps>| match steps.get() {
        Steps::Apart => false,
        Steps::Together | Steps::TogetherCalled => {
            steps.set(Steps::TogetherCalled);
            true
        }
    };
    STEPS.try_with(within).unwrap_or(false)
}

/// Runs `change`, and makes the calls that it causes when it has returned: it may hold a lock that they want. A panic of
/// `change` goes on after the calls, else the first of theirs.
pub(crate) fn defer<R>(change: impl FnOnce() -> R) -> R {
    let is_first = LATER.try_with(|later| !mem::replace(&mut later.borrow_mut().busy, true));
    let was = DEFERRING.try_with(|defer| defer.replace(true)).unwrap_or(false);
    let result = catch_unwind(AssertUnwindSafe(change));
    let _ = DEFERRING.try_with(|defer| defer.set(was));
    let mut panics = PanicCollector::default();
    if matches!(is_first, Ok(true)) && !wait_for_last_step() {
        call_rest(&mut panics);
    }
    match result {
        Ok(result) => {
            panics.end();
            result
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// True while this thread is in [`defer`]: only a waker that is woken by itself, and not by a call, can ask there.
pub(crate) fn is_deferred() -> bool {
    DEFERRING.try_with(Cell::get).unwrap_or(false)
}

/// Calls `watch` now, or after the call that is running on this thread. All calls that are deferred meanwhile are made,
/// whichever of them panic; the first panic goes on then.
pub(crate) fn call(watch: Arc<dyn Notified>) {
    let mut first = Some(watch);
    let waits = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        let waits = mem::replace(&mut later.busy, true) || wait_for_last_step();
        if waits {
            later.calls.extend(first.take());
        }
        waits
    });
    let Some(next) = first else { return };
    if waits.is_err() {
        // The thread is ending and its locals are gone.
        return next.notified();
    }
    let mut panics = PanicCollector::default();
    panics.run(|| next.notified());
    call_rest(&mut panics);
    panics.end();
}

/// Makes the deferred calls, and those that they defer; from then on none is running on this thread.
fn call_rest(panics: &mut PanicCollector) {
    let next = || {
        LATER.with(|later| {
            let mut later = later.borrow_mut();
            let next = later.calls.pop_front();
            if next.is_none() {
                later.busy = false;
                later.calls.shrink_to(Later::KEPT);
            }
            next
        })
    };
    while let Some(watch) = next() {
        panics.run(|| watch.notified());
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Notes(usize, Arc<Mutex<Vec<usize>>>);

    impl Notified for Notes {
        fn notified(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
            if self.0 == 1 {
                resume_unwind(Box::new("the second"));
            }
        }
    }

    /// All are called once each, in the order in which they came, although one panics.
    #[test]
    fn listeners_are_called_once_and_in_order_whichever_panics() {
        let (notify, called) = (Notify::new(), Arc::default());
        let watches: Vec<_> = (0..5).map(|n| Arc::new(Notes(n, Arc::clone(&called)))).collect();
        for _ in 0..3 {
            watches
                .iter()
                .for_each(|watch| notify.listen(&Listener::new(Arc::downgrade(watch))));
        }
        let notified = catch_unwind(AssertUnwindSafe(|| notify.notify_all()));
        assert_eq!(notified.unwrap_err().downcast_ref(), Some(&"the second"));
        notify.notify_all();
        assert_eq!(*called.lock().unwrap(), [0, 1, 2, 3, 4]);
    }

    /// Listeners that have gone are not kept, however many come.
    #[test]
    fn listeners_that_have_gone_are_let_go() {
        let notify = Notify::new();
        for _ in 0..10_000 {
            notify.listen(&Listener::new(Arc::downgrade(&Arc::new(Notes(0, Arc::default())))));
        }
        let lists = notify.lists.lock();
        for listeners in [&lists.next, &lists.changes] {
            assert_eq!(listeners.list.len(), listeners.known.len());
            assert!(listeners.list.len() < 100);
        }
    }

    /// A change of settings calls the listeners that a plain notification has called, once.
    #[test]
    fn a_change_of_settings_calls_listeners_that_were_notified_before() {
        let (notify, called) = (Notify::new(), Arc::default());
        let watch = Arc::new(Notes(7, Arc::clone(&called)));
        notify.listen(&Listener::new(Arc::downgrade(&watch)));
        notify.notify_all();
        assert_eq!(*called.lock().unwrap(), [7]);
        notify.notify_reconfigured();
        notify.notify_reconfigured();
        assert_eq!(*called.lock().unwrap(), [7, 7]);
    }
}
