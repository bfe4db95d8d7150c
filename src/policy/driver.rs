//! What drives the queue of a policy: it asks the legs for the head, and hands each ticket to its owner.
//!
//! The join or leave of a head, a timer, a grant and a change drive, each on its own thread; a flag lets one thread drive at a time. An
//! owner only looks for the end of its wait. So a future that is not polled stops no other. No lock is held while a leg or a waker runs.

use super::QUEUE;
use super::order::{Eviction, Order};
use super::queue::{End, Key, Queue, Waiter};
use super::timer::Timer;
use super::waits::Waits;
use crate::core::ask::{Ask, Demand, Role, Waiting};
use crate::core::limiter::Limiter;
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::unwind::{Finally, both, drop_quietly, quietly};
use crate::sync::wait_queue::{Place, Watch, Watchers, new_age};
use crate::sync::wake::{before_wakes, wake};
use crate::time::{Clock, ClockReading, Instant};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

/// The settings of a policy, in ticks of its clock.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) max_wait: Option<u64>,
    pub(super) max_queue: usize,
    pub(super) lateness: u64,
    /// The time that work takes after a wait with a deadline.
    pub(super) work: u64,
    pub(super) order: Order,
    pub(super) eviction: Eviction,
    /// No wait at the limiter can end at the right instant: it decides by another clock, or one queue stands in two legs.
    pub(super) misfit: bool,
}

/// A policy's limiter, and its queue.
pub(super) struct Core<L: Limiter + 'static> {
    pub(super) limiter: L,
    pub(super) clock: Clock,
    pub(super) settings: Settings,
    // In ticks, `u64::MAX` for none, and waiters at most: they may change. Relaxed: each stands for itself.
    pub(super) max_wait: AtomicU64,
    pub(super) max_queue: AtomicUsize,
    // The number of waiters, and `CLOSED`. Written under the lock of the queue; read without it as a hint.
    state: AtomicUsize,
    queue: Mutex<Queue<L::Ticket>>,
    pub(super) place: Place,
    pub(super) timer: Timer,
    // The latest instant that a paused clock of a runtime has shown.
    ahead: AtomicU64,
    pub(super) waits: Waits,
    // Those who wait until the last waiter has gone.
    emptied: Mutex<Vec<Waker>>,
    // Policies around this one, which are told that it is closed.
    pub(super) watchers: Watchers,
    this: Weak<Self>,
}

/// Set in the state of a policy that takes no newcomers.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Set after an admission that its owner has taken up late: a caller that asks again at once goes on where that one was counted.
const LATE: usize = 1 << (usize::BITS - 2);

/// A head that looked ready and was refused is asked again so often, and then after [`PAUSE`].
const TRIES: u32 = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// What to do after a step.
enum Step {
    Again,
    /// The head waits until then, at the latest.
    Sleep(Option<Instant>),
}

struct Drives<L: Limiter + 'static>(Weak<Core<L>>);

impl<L: Limiter + 'static> Wake for Drives<L> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            core.drive();
            // This may be the last handle: then the legs are dropped here.
            drop_quietly(core);
        }
    }
}

impl<L: Limiter + 'static> Core<L> {
    pub(super) fn new(limiter: L, clock: Clock, settings: Settings) -> Arc<Self> {
        let core = Arc::new_cyclic(|this: &Weak<Self>| Self {
            limiter,
            clock,
            max_wait: AtomicU64::new(settings.max_wait.unwrap_or(u64::MAX)),
            max_queue: AtomicUsize::new(settings.max_queue),
            state: AtomicUsize::new(0),
            queue: Mutex::new(Queue::new(settings.order.clone())),
            place: Place::new(Waker::from(Arc::new(Drives(Weak::clone(this))))),
            timer: Timer::default(),
            ahead: AtomicU64::new(0),
            waits: Waits::new(),
            emptied: Mutex::new(Vec::new()),
            watchers: Watchers::new(),
            this: Weak::clone(this),
            settings,
        });
        let watcher: Weak<dyn Watch> = Weak::clone(&core.this) as Weak<dyn Watch>;
        core.limiter.watch(&watcher);
        core
    }

    /// The instant of its clock, or the latest that a paused clock of a runtime has come to.
    pub(super) fn now(&self) -> Instant {
        // Relaxed: the thread that has moved it drives after that.
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.clock.now().max(Instant::from_ticks(ahead))
    }

    /// The clock of a runtime has come to `at`. One that a test has paused runs ahead of the real one.
    #[cfg(feature = "tokio")]
    pub(super) fn has_come_to(&self, at: Instant) {
        self.ahead.fetch_max(at.ticks(), Ordering::Relaxed);
    }

    /// True when a newcomer may be admitted on the spot, as of now.
    pub(super) fn is_idle(&self) -> bool {
        // Relaxed: nothing is published by it. A newcomer beside one that is just joining may go first.
        self.state.load(Ordering::Relaxed) == 0
    }

    /// True when the queue is empty and newcomers are taken.
    pub(super) fn is_open_and_empty(&self) -> bool {
        self.state.load(Ordering::Relaxed) & !LATE == 0
    }

    pub(super) fn waiting(&self) -> usize {
        self.state.load(Ordering::Relaxed) & !(CLOSED | LATE)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Runs `change` under the lock, and counts the waiters anew.
    fn change<R>(&self, change: impl FnOnce(&mut Queue<L::Ticket>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        let flags = self.state.load(Ordering::Relaxed) & (CLOSED | LATE);
        let had = self.state.swap(queue.len() | flags, Ordering::Relaxed) & !(CLOSED | LATE);
        let emptied = had > 0 && queue.len() == 0 && flags & CLOSED != 0;
        drop(queue);
        if emptied {
            let wakers = std::mem::take(&mut *self.emptied.lock());
            wakers.into_iter().for_each(wake);
        }
        result
    }

    /// Admits from the front as long as that is possible.
    pub(super) fn drive(&self) {
        let drives = self.change(|queue| {
            queue.again = true;
            !std::mem::replace(&mut queue.driving, true)
        });
        if !drives {
            return;
        }
        // Others are woken when the next head has joined the queues of its legs: else they would find no older waiter there.
        before_wakes(|| self.drive_alone());
    }

    fn drive_alone(&self) {
        // Each call of users' code is caught by itself. Should something else panic, the next that drives goes on.
        let end = Finally::new(|| self.queue.lock().driving = false);
        loop {
            self.queue.lock().again = false;
            let until = loop {
                if let Step::Sleep(until) = self.step() {
                    break until;
                }
            };
            let (first, _) = self.queue.lock().first_deadline().unzip();
            let at = until.into_iter().chain(first).min();
            let due = self.this.upgrade().is_some_and(|this| self.timer.set(at, &this));
            let done = self.change(|queue| {
                queue.driving = queue.again || due;
                !queue.driving
            });
            if done {
                end.forget();
                return;
            }
        }
    }

    /// Ends a wait and wakes its owner: true unless the owner has left. Then a ticket is cancelled.
    fn end(&self, key: Key, end: End<L::Ticket>) -> bool {
        let ended = self.change(|queue| queue.end(key, end));
        let waits = ended.is_ok();
        match ended {
            Ok(waker) => waker.into_iter().for_each(wake),
            Err(End::Admitted(ticket)) => quietly(|| self.limiter.cancel(ticket)),
            Err(End::Panicked(panic)) => drop_quietly(panic),
            Err(_) => {}
        }
        waits
    }

    fn step(&self) -> Step {
        let now = self.now();
        if let Some(key) = self.expired(now) {
            self.end(key, End::Expired);
            return Step::Again;
        }
        if self.change(|queue| std::mem::take(&mut queue.changed)) {
            // The head is asked after each pass, however often the settings change.
            self.judge_all();
        }
        let head = {
            let queue = self.queue.lock();
            queue
                .head()
                .map(|(key, head)| (key, head.ask, head.deadline, head.since, queue.as_of))
        };
        let Some((key, ask, deadline, arrived, before)) = head else {
            self.leave_legs();
            return Step::Sleep(None);
        };
        // A late timer is made up for, up to the lateness.
        let earliest = Instant::from_ticks(now.ticks().saturating_sub(self.settings.lateness));
        let as_of = arrived.max(before).max(earliest).min(now);
        let attempt = catch_unwind(AssertUnwindSafe(|| self.attempt(&ask, as_of, now)));
        self.waits.asked(self.clock.between(now, self.now()));
        let end = match attempt {
            Ok(Err((refusal, stuck))) => match self.in_vain(refusal, now, deadline) {
                Some(refusal) => End::Refused(refusal),
                None => {
                    self.caught_up();
                    let mut until = self.place.keeps_until();
                    if let Wait::Until { at, .. } = stuck {
                        until = Some(until.map_or(at, |until| until.min(at)));
                    }
                    return Step::Sleep(until);
                }
            },
            Ok(Ok((ticket, at))) => {
                self.queue.lock().as_of = at;
                self.waits.waited(self.clock.between(arrived, now));
                End::Admitted(ticket)
            }
            Err(panic) => End::Panicked(panic),
        };
        // After an admission, others that wait there go first, and the next head joins behind them. The next after a refusal takes over.
        if !matches!(end, End::Refused(_)) {
            self.leave_legs();
        }
        self.end(key, end);
        Step::Again
    }

    /// A waiter whose deadline is past. One that ends just now is the head's last chance.
    fn expired(&self, now: Instant) -> Option<Key> {
        let queue = self.queue.lock();
        let (deadline, key) = queue.first_deadline()?;
        let last_chance = deadline == now && queue.is_head(key);
        (deadline <= now && !last_chance).then_some(key)
    }

    /// The refusal that ends a wait now: no wait helps, or none that ends in time.
    fn in_vain(&self, refusal: Refusal, now: Instant, deadline: Option<Instant>) -> Option<Refusal> {
        if refusal.wait() == Wait::Never || refusal.is_at_once() {
            return Some(refusal);
        }
        let at = refusal.wait().not_before().unwrap_or(now);
        let late = deadline.is_some_and(|deadline| deadline < at || deadline == now);
        late.then(|| refusal.with_reason(Reason::TimedOut))
    }

    /// Looks, and takes when all legs are ready: as of the instant at which they were. Otherwise the refusal of all legs, and what the head
    /// waits for where it has joined.
    fn attempt(&self, ask: &Ask, mut as_of: Instant, now: Instant) -> Result<(L::Ticket, Instant), (Refusal, Wait)> {
        let none = Ask::many(0);
        let waiting = |role| Waiting {
            ahead: &none,
            place: Some(&self.place),
            role,
            answers: None,
        };
        let (head, joining) = (waiting(Role::Head), waiting(Role::Joining));
        for _ in 0..TRIES {
            let reading = ClockReading::at(&self.clock, as_of);
            let demand = Demand::waiting(ask, &reading, &head);
            self.place.begin_look();
            let mut looked = self.limiter.look(&demand);
            // It joins another queue only when it is ready in all that it has joined.
            if let Err(refusal) = looked {
                let may_come = match refusal.wait() {
                    Wait::Until { at, .. } => at > now,
                    wait => wait != Wait::Never,
                };
                if may_come && !refusal.is_at_once() && self.place.waits().is_none() {
                    let moves = self.place.moves_on(refusal.wait(), now, &self.clock);
                    looked = self.limiter.look(&Demand::waiting(ask, &reading, &joining));
                    if moves {
                        self.place.leave_others(|| self.limiter.leave(&self.place));
                        continue;
                    }
                }
            }
            let stuck = self.place.waits();
            if stuck.is_some() && self.place.gives_up(now) {
                self.place.leave_others(|| self.limiter.leave(&self.place));
                continue;
            }
            match looked {
                Err(refusal) if refusal.wait() == Wait::Never => return Err((refusal, Wait::Never)),
                Err(refusal) => match stuck.unwrap_or(refusal.wait()) {
                    Wait::Until { at, .. } if at <= now => as_of = at.max(as_of.after_ticks(1)).min(now),
                    stuck => return Err((refusal, stuck)),
                },
                Ok(()) => match self.limiter.try_reserve(&demand) {
                    Ok(ticket) => return Ok((ticket, as_of)),
                    Err(refusal) if refusal.wait() == Wait::Never => return Err((refusal, Wait::Never)),
                    // Another caller was faster.
                    Err(_) => as_of = now,
                },
            }
        }
        // It looked ready each time, and was not: later.
        let soon = Wait::until(&self.clock, now, self.clock.after(now, PAUSE));
        Err((Refusal::new(Reason::Saturated, QUEUE, soon), soon))
    }

    /// Gives up all places in the queues of waiters of the legs.
    fn leave_legs(&self) {
        if self.place.age().is_some() {
            quietly(|| self.limiter.leave(&self.place));
            self.place.end();
        }
    }

    /// Judges all waiters anew, each behind those before it in its class.
    fn judge_all(&self) {
        let waiters = self.queue.lock().in_order();
        let (mut ahead, mut class) = (Ask::many(0), None);
        let newest_first = self.settings.order == Order::Lifo;
        for (key, ask, deadline) in waiters {
            if class.replace(key.0) != Some(key.0) || newest_first {
                ahead = Ask::many(0);
            }
            let now = self.now();
            let judge = AssertUnwindSafe(|| {
                let refusal = self.judge(&ask, &ahead, now).err()?;
                self.in_vain(refusal, now, deadline)
            });
            let end = match catch_unwind(judge) {
                Ok(None) => {
                    ahead.absorb(&ask);
                    continue;
                }
                Ok(Some(refusal)) => End::Refused(refusal),
                Err(panic) => End::Panicked(panic),
            };
            self.end(key, end);
        }
    }

    /// Would `ask` be admitted behind `ahead`?
    fn judge(&self, ask: &Ask, ahead: &Ask, now: Instant) -> Result<(), Refusal> {
        let reading = ClockReading::at(&self.clock, now);
        let waiting = Waiting {
            ahead,
            place: Some(&self.place),
            role: Role::Newcomer,
            answers: None,
        };
        self.limiter.look(&Demand::waiting(ask, &reading, &waiting))
    }

    /// The refusal of a newcomer that does not wait, while there are waiters or the policy is closed.
    #[cold]
    pub(super) fn refuse_behind(&self, ask: &Ask) -> Refusal {
        if self.is_closed() {
            return closed();
        }
        let ahead = self.queue.lock().ahead(ask);
        let behind = self.judge(ask, &ahead, self.now()).err();
        behind.unwrap_or(Refusal::new(Reason::Saturated, QUEUE, Wait::EVENT))
    }

    /// True for a policy that serves the newest first: a newcomer is before all waiters.
    pub(super) fn newest_first(&self) -> bool {
        self.settings.order == Order::Lifo && !self.is_closed()
    }

    /// Joins the queue, unless that is in vain.
    pub(super) fn join(&self, ask: &Ask, patience: Option<Duration>) -> Result<u64, Refusal> {
        if self.is_closed() {
            return Err(closed());
        }
        let now = self.now();
        let (ahead, changes) = {
            let queue = self.queue.lock();
            (queue.ahead(ask), queue.changes)
        };
        // The work that follows is to end in time as well.
        let patience = patience.map(|patience| self.clock.ticks_of(patience).saturating_sub(self.settings.work));
        let most = Some(self.max_wait.load(Ordering::Relaxed)).filter(|&ticks| ticks < u64::MAX);
        let patience = patience.into_iter().chain(most).min();
        let deadline = patience.map(|ticks| now.after_ticks(ticks));
        let judged = self.judge(ask, &ahead, now);
        if let Some(refusal) = judged.err().and_then(|refusal| self.in_vain(refusal, now, deadline)) {
            return Err(refusal);
        }
        let full = || match judged {
            Err(refusal) => refusal.with_reason(Reason::QueueFull),
            Ok(()) => Refusal::new(Reason::QueueFull, QUEUE, Wait::EVENT),
        };
        if self.settings.misfit {
            return Err(Refusal::new(Reason::Misconfigured, QUEUE, Wait::Never));
        }
        let (waiter, arrival) = (
            Waiter {
                ask: *ask,
                since: self.counts_from(now),
                deadline,
                waker: None,
            },
            new_age(),
        );
        let most = self.max_queue.load(Ordering::Relaxed);
        let joined = self.change(|queue| {
            // Under the lock under which it is closed.
            if self.is_closed() {
                return Err(closed());
            }
            let (mut evicted, was_full) = (None, queue.len() >= most);
            if was_full {
                let key = queue
                    .evicts_for(ask, self.settings.eviction)
                    .filter(|_| most > 0)
                    .ok_or_else(full)?;
                evicted = queue.end(key, End::Evicted).ok().flatten();
            }
            let key = queue.key_of(arrival, ask);
            queue.push(key, waiter);
            let is_first = deadline.is_some() && queue.first_deadline().is_some_and(|(_, first)| first == key);
            // It was judged before the latest change.
            queue.changed |= queue.changes != changes;
            // The evicted one may have been the head.
            Ok((evicted, was_full || is_first || queue.changed || queue.is_head(key)))
        });
        let (evicted, drives) = joined?;
        evicted.into_iter().for_each(wake);
        #[cfg(feature = "tokio")]
        if let Some(this) = self.this.upgrade() {
            self.timer.joined(&this);
        }
        // Behind others, nothing changes.
        if drives {
            self.drive();
        }
        Ok(arrival)
    }

    /// The instant from which a newcomer counts: that of the latest admission, if its owner has taken that up late and just now. So a caller
    /// that asks again and again meets a rate above one per timer tick.
    fn counts_from(&self, now: Instant) -> Instant {
        if self.state.load(Ordering::Relaxed) & LATE == 0 {
            return now;
        }
        let (as_of, taken_up) = {
            let queue = self.queue.lock();
            (queue.as_of, queue.taken_up)
        };
        match now.ticks_since(taken_up) <= self.clock.ticks_of(PAUSE) {
            true => as_of.min(now),
            false => {
                self.caught_up();
                now
            }
        }
    }

    /// The next admission counts as of now.
    fn caught_up(&self) {
        self.state.fetch_and(!LATE, Ordering::Relaxed);
    }

    /// The owner has taken an admission up at `now`.
    fn taken_up(&self, queue: &mut Queue<L::Ticket>, now: Instant) {
        let late = now.ticks_since(queue.as_of);
        if late > 0 && late <= self.settings.lateness {
            queue.taken_up = now;
            self.state.fetch_or(LATE, Ordering::Relaxed);
        }
    }

    /// Admits a newcomer past all waiters, or refuses: where the newest is served first.
    #[cold]
    pub(super) fn try_as_head(&self, ask: &Ask) -> Result<L::Ticket, Refusal> {
        let (arrival, since) = (new_age(), self.now());
        let waiter = Waiter {
            ask: *ask,
            since,
            deadline: None,
            waker: None,
        };
        self.change(|queue| queue.push(queue.key_of(arrival, ask), waiter));
        self.drive();
        match self.look(arrival, ask, Waker::noop()) {
            Some(End::Admitted(ticket)) => Ok(ticket),
            Some(End::Refused(refusal)) => Err(refusal),
            Some(End::Panicked(panic)) => std::panic::resume_unwind(panic),
            _ => {
                self.leave(arrival, ask);
                Err(self.why(Reason::Saturated, ask))
            }
        }
    }

    /// The end of the wait `arrival`, if it has ended; otherwise `waker` is left to be woken then.
    pub(super) fn look(&self, arrival: u64, ask: &Ask, waker: &Waker) -> Option<End<L::Ticket>> {
        let (mut own, now) = (None, self.now());
        loop {
            let mut queue = self.queue.lock();
            let key = queue.key_of(arrival, ask);
            if let Some(end) = queue.take_end(key) {
                if matches!(end, End::Admitted(_)) {
                    self.taken_up(&mut queue, now);
                }
                return Some(end);
            }
            let known = queue.waker(key)?;
            if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
                return None;
            }
            if let Some(own) = own.take() {
                let old = known.replace(own);
                drop(queue);
                drop_quietly(old);
                return None;
            }
            drop(queue);
            // Outside the lock: a waker is users' code.
            own = Some(waker.clone());
        }
    }

    /// Its owner gives the wait up.
    pub(super) fn leave(&self, arrival: u64, ask: &Ask) {
        let (waiter, end, was_head) = self.change(|queue| {
            let key = queue.key_of(arrival, ask);
            let was_head = queue.is_head(key);
            (queue.remove(key), queue.take_end(key), was_head)
        });
        drop_quietly(waiter);
        match end {
            // In the drop of a future, which may itself run during a panic.
            Some(End::Admitted(ticket)) => both(|| self.limiter.cancel(ticket), || ()),
            Some(End::Panicked(panic)) => drop_quietly(panic),
            _ => {}
        }
        if was_head {
            self.drive();
        }
    }

    /// The refusal of a wait that ended by its deadline, or that was evicted: with the leg that was in the way.
    pub(super) fn why(&self, reason: Reason, ask: &Ask) -> Refusal {
        let now = self.now();
        match self.judge(ask, &Ask::many(0), now) {
            Err(refusal) if refusal.wait() == Wait::Never => refusal,
            Err(refusal) => refusal.with_reason(reason),
            Ok(()) => Refusal::new(reason, QUEUE, Wait::EVENT),
        }
    }

    /// Wakes `waker` once, when the last waiter has gone.
    pub(super) fn wake_when_empty(&self, waker: &Waker) {
        let waker = waker.clone();
        let mut wakers = self.emptied.lock();
        match wakers.iter().any(|known| known.will_wake(&waker)) {
            true => {
                drop(wakers);
                drop_quietly(waker);
            }
            false => wakers.push(waker),
        }
    }

    /// Takes no newcomers from now on.
    pub(super) fn close_to_newcomers(&self) {
        {
            let _queue = self.queue.lock();
            self.state.fetch_or(CLOSED, Ordering::Relaxed);
        }
        self.watchers.changed();
    }

    /// Ends all waits; returns the number of those that it has ended.
    pub(super) fn refuse_all(&self) -> usize {
        let waiters = self.queue.lock().in_order();
        let mut ended = 0;
        for (key, ..) in waiters {
            ended += usize::from(self.end(key, End::Refused(closed())));
        }
        self.drive();
        ended
    }
}

fn closed() -> Refusal {
    Refusal::new(Reason::Closed, QUEUE, Wait::Never)
}

impl<L: Limiter + 'static> Watch for Core<L> {
    fn changed(self: Arc<Self>) {
        let waits = self.change(|queue| {
            queue.changes = queue.changes.wrapping_add(1);
            queue.changed = queue.len() > 0;
            queue.changed
        });
        if waits {
            wake(self.place.waker().clone());
        }
    }
}

/// The queue of a dropped policy holds no place in the queues of its legs.
impl<L: Limiter + 'static> Drop for Core<L> {
    fn drop(&mut self) {
        if self.place.age().is_some() {
            quietly(|| self.limiter.leave(&self.place));
        }
    }
}
