//! The dispatcher of a policy's queue: the acts outside the lock, which call legs, wakers and the queues of legs. The transitions
//! under the lock stand in [`queue`](super::queue).

use super::early_rejection::rejection_probability;
use super::queue::{AskAhead, Head, Lookup, Next, Queue, Timing, WaitEnd, Waited, WaiterKey, WaiterView};
use super::settings::{Bounds, Settings};
use crate::core::ask::{Ask, Demand, MAX_COSTS, Place};
use crate::core::limiter::{Limiter, admit_in};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::rng::nth_fraction;
use crate::sync::notify::{self, Listener, Notified, Notify};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::wait_queue::{QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::sync::wake::{PanicCollector, drop_quietly, quietly, wake_all, wake_all_quietly};
use crate::time::{Clock, ClockReading, Instant, Sleep};
use std::any::Any;
use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// How long the timer waits for a waiter that it has woken to drive the queue, before it wakes others. Half the default
/// lateness that is made up for: a waiter that is not polled costs the rate nothing.
const GRACE: Duration = Duration::from_millis(5);

/// How long a head that has moved too often between the orders of legs waits before it joins one again.
const PAUSE: Duration = Duration::from_millis(1);

/// The limiter, the clock and the queue of a policy, shared by its handles and waiting futures.
pub(super) struct PolicyCore<L: Limiter> {
    pub(super) limiter: L,
    pub(super) clock: Clock,
    pub(super) settings: Bounds,
    /// Notified when the queue has emptied: for a policy that is a leg of another.
    pub(super) notify: Notify,
    queue: Mutex<Queue<L::Ticket>>,
    /// Made when it is first needed. Its lock is taken before the queue's.
    timer: Mutex<Option<Box<Timer>>>,
    /// The waiters in order, and those for larger limits. Written under the queue's lock; read without it as a hint.
    in_order: AtomicUsize,
    parked: AtomicUsize,
    /// The instant as of which the latest waiter was admitted, in ticks.
    last_as_of: AtomicU64,
    /// The same if it was late, by the timer that fired or by the task that was polled; zero if it was not.
    lateness_credit: AtomicU64,
    listener: Listener,
    /// The number of draws by chance.
    draws: AtomicU64,
}

/// The timer of the queue, and its waker. It belongs to no runtime: one that drives its timers late, or not at all, holds up no
/// waiter of another.
struct Timer {
    sleep: Sleep,
    waker: Waker,
}

/// The result of an attempt for a waiter.
enum Attempt<T> {
    Admitted(T),
    /// Look again at this instant.
    At(Instant),
    /// Look again after an event, or at this instant; and the instant since when only a turn is missing, if it is.
    OnEvent(Option<Instant>, Option<Instant>),
    /// Look again when a leg notifies, or at this instant. Others are served meanwhile.
    OnRaise(Option<Instant>),
    /// Waiting changes nothing, or a leg is not waited for.
    Refused,
    /// A leg has panicked.
    Panicked(Box<dyn Any + Send>),
}

/// A queue of a leg, to be joined.
struct LegQueue<'a> {
    wait_queue: &'a dyn WaitQueue,
    units: u64,
    /// The waiters before it there may leave unnoticed before it has joined.
    behind: bool,
}

impl<'a> LegQueue<'a> {
    fn new(wait_queue: &'a dyn WaitQueue, units: u64) -> Self {
        Self {
            wait_queue,
            units,
            behind: wait_queue.holds_nothing(),
        }
    }

    /// Joins it for this part of `ask`.
    fn join(&self, ask: &Ask, waker: &Waker) -> QueueKey {
        let mut costs = [("", 0); MAX_COSTS];
        let mut named = 0;
        for (cost, units) in ask.costs() {
            costs[named] = (cost.name(), units);
            named += 1;
        }
        let demand = QueueDemand {
            units: self.units,
            class: ask.class_number(),
            calls: ask.count(),
            costs: &costs[..named],
        };
        self.wait_queue.join(demand, waker)
    }

    /// The queue of an instant that is to come.
    fn until_due(ready: &ReadyAt<'a>) -> Option<Self> {
        ready.due_turn().map(|due| Self {
            behind: due.behind,
            ..Self::new(due.wait_queue, due.units)
        })
    }

    /// The queue of an event.
    fn of_event(ready: &ReadyAt<'a>) -> Option<Self> {
        ready.turn().map(|(wait_queue, units)| Self::new(wait_queue, units))
    }
}

impl<L: Limiter + 'static> PolicyCore<L> {
    pub(super) fn new(limiter: L, clock: Clock, settings: Settings) -> Arc<Self> {
        let timing = Timing {
            grace: clock.ticks_of(GRACE),
            exact: clock.is_manual(),
        };
        Arc::new_cyclic(|weak| Self {
            limiter,
            clock,
            settings: Bounds::new(settings.clone()),
            notify: Notify::new(),
            queue: Mutex::new(Queue::new(&settings.order.order, timing)),
            timer: Mutex::new(None),
            in_order: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            last_as_of: AtomicU64::new(0),
            lateness_credit: AtomicU64::new(0),
            listener: Listener::new(weak.clone()),
            draws: AtomicU64::new(0),
        })
    }
}

impl<L: Limiter> PolicyCore<L> {
    /// The waiters.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        // Relaxed: a hint. A caller that misses a waiter which is just joining is concurrent with it.
        self.in_order.load(Ordering::Relaxed) + self.parked.load(Ordering::Relaxed)
    }

    /// True when a newcomer has waiters before it.
    #[inline]
    pub(super) fn has_before(&self) -> bool {
        self.in_order.load(Ordering::Relaxed) > 0 && !self.settings.newest_first()
    }

    /// True without waiters, and without one that was just served late: a newcomer may be admitted on the spot.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting() == 0 && !self.was_late()
    }

    /// True when a waiter has just been served late.
    pub(super) fn was_late(&self) -> bool {
        self.lateness_credit.load(Ordering::Relaxed) != 0
    }

    /// The turn of this queue at a leg that hands nothing over. It belongs to the queue, not to its present head.
    fn own_turn(&self) -> Option<QueueKey> {
        let (_, claim) = self.queue.lock().claim()?;
        self.is_turn_only(claim).then_some(claim)
    }

    /// True when `claim` is a place in the queue of a leg that hands over.
    fn is_claimant(&self, claim: &Cell<Option<QueueKey>>) -> bool {
        claim.get().is_some_and(|claim| !self.is_turn_only(claim))
    }

    fn is_turn_only(&self, claim: QueueKey) -> bool {
        let wait_queue = self.limiter.wait_queue(claim.wait_queue());
        wait_queue.is_some_and(WaitQueue::holds_nothing)
    }

    /// Asks the legs for a newcomer while others wait, unless a waiter is before it.
    #[cold]
    pub(super) fn reserve_past_waiters(
        &self,
        demand: Demand<'_>,
        ticket: &mut Option<L::Ticket>,
    ) -> Result<(), Refusal<'_>> {
        if self.has_before() {
            return Err(Refusal::new(
                Reason::Saturated,
                super::QUEUE,
                demand.units(),
                Wait::Event,
            ));
        }
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant: false,
            watcher: &self.listener,
            claim: &Cell::new(self.own_turn()),
        };
        self.limiter.reserve_in(demand.at_place(&place), ticket)
    }

    /// The earliest instant as of which a waiter may be admitted at `now`: not before it joined, nor before the instant that
    /// the last look at the legs found, nor before the latest waiter that was served.
    fn floor(&self, waited: Waited, now: Instant) -> Instant {
        let earliest = Instant::from_ticks(now.ticks().saturating_sub(self.settings.lateness()));
        // Relaxed: a stale value changes how much lateness is made up for, within the same cap.
        let last = Instant::from_ticks(self.last_as_of.load(Ordering::Relaxed));
        let credit = Instant::from_ticks(self.lateness_credit.load(Ordering::Relaxed));
        let from = match waited {
            Waited::Since(since) if credit > earliest => since.min(credit),
            Waited::Since(since) => since,
            Waited::Due(Some(due)) if due <= now => due,
            // A leg has loosened before the due instant: now.
            Waited::Due(_) => now,
        };
        from.max(earliest).max(last).min(now)
    }

    /// Asks the legs for a waiter, as of the instant of its turn.
    fn attempt(
        &self,
        ask: &Ask,
        waited: Waited,
        claim: &Cell<Option<QueueKey>>,
    ) -> (Attempt<L::Ticket>, Option<LegQueue<'_>>) {
        let now = self.clock.now();
        let floor = self.floor(waited, now);
        let is_claimant = self.is_claimant(claim);
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant,
            watcher: &self.listener,
            claim,
        };
        // Rates first, by looking only: no turn of a queue is taken, and wasted, before they are ready.
        let reading = ClockReading::at(&self.clock, floor);
        let ready = self.limiter.ready_at(Demand::waiting(ask, &reading, &place));
        if ready.is_never() {
            return (Attempt::Refused, None);
        }
        if ready.refuses_at_once(now).is_some() {
            return (Attempt::Refused, None);
        }
        if ready.is_raise() {
            return (Attempt::OnRaise(ready.event_by()), None);
        }
        let as_of = ready.not_before().unwrap_or(floor).max(floor);
        if as_of > now {
            // A place in a queue that has not handed over yet holds nothing. It is kept, or another queue would always be first
            // there. A permit that it is handed before the instant goes on to the next.
            let waiting = LegQueue::of_event(&ready).filter(|_| is_claimant && ready.is_event());
            // No turn of a rate is taken while the head waits for an event that no queue hands over: at its instant it would
            // keep others waiting in vain.
            let in_vain = ready.is_event() && ready.turn().is_none();
            let turn = waiting.or_else(|| LegQueue::until_due(&ready).filter(|_| !in_vain));
            let was_due = matches!(waited, Waited::Due(Some(due)) if due <= now);
            if was_due && turn.as_ref().is_some_and(|turn| turn.behind) {
                // The waiters before it would have been served by then: only its turn is missing.
                return (Attempt::OnEvent(Some(as_of), Some(floor)), turn);
            }
            return (Attempt::At(as_of), turn);
        }
        if ready.is_event() {
            // From then on: the waiters before it are still to be charged as of earlier instants.
            let since = ready.is_due().then_some(floor);
            return (Attempt::OnEvent(ready.event_by(), since), LegQueue::of_event(&ready));
        }
        let reading = ClockReading::at(&self.clock, as_of);
        match self.limiter.try_reserve(Demand::waiting(ask, &reading, &place)) {
            Ok(ticket) => {
                self.last_as_of.store(as_of.ticks(), Ordering::Relaxed);
                self.note_lateness(now);
                (Attempt::Admitted(ticket), None)
            }
            // Another caller was faster: the legs are asked again for the instant.
            Err(refusal) => match refusal.wait() {
                Wait::Until(due) => {
                    let ready = self.ready_for_head(ask, now, claim);
                    if ready.is_due() {
                        return (
                            Attempt::OnEvent(ready.event_by(), Some(now)),
                            LegQueue::of_event(&ready),
                        );
                    }
                    let kept = || self.limiter.wait_queue(claim.get()?.wait_queue());
                    let kept = kept()
                        .filter(|kept| kept.holds_nothing())
                        .map(|kept| LegQueue::new(kept, 0));
                    (Attempt::At(due.instant()), LegQueue::until_due(&ready).or(kept))
                }
                Wait::Turn(wait_queue) => {
                    let by = self.ready_for_head(ask, now, &Cell::new(None)).event_by();
                    let turn = LegQueue::new(wait_queue, refusal.units());
                    (Attempt::OnEvent(by, None), Some(turn))
                }
                Wait::Event => {
                    let by = self.ready_for_head(ask, now, &Cell::new(None)).event_by();
                    (Attempt::OnEvent(by, None), None)
                }
                Wait::Never => (Attempt::Refused, None),
            },
        }
    }

    /// Looks at the legs for a head that was refused although all of them looked ready.
    #[cold]
    fn ready_for_head(&self, ask: &Ask, now: Instant, claim: &Cell<Option<QueueKey>>) -> ReadyAt<'_> {
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant: self.is_claimant(claim),
            watcher: &self.listener,
            claim,
        };
        let reading = ClockReading::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, &reading, &place))
    }

    /// Notes that a waiter is served at `now` which was due at the latest instant: the next may catch up.
    pub(super) fn note_lateness(&self, now: Instant) {
        // Relaxed: see `floor`.
        let last = self.last_as_of.load(Ordering::Relaxed);
        let late = if last < now.ticks() { last } else { 0 };
        self.lateness_credit.store(late, Ordering::Relaxed);
    }

    /// Admits a newcomer to an empty queue whose latest waiter was served late. Forgets that lateness once it is older than the
    /// cap.
    pub(super) fn admit_after_late(&self, ask: &Ask) -> Option<L::Ticket> {
        let now = self.clock.now();
        let turn = Cell::new(self.own_turn());
        let credit = Instant::from_ticks(self.lateness_credit.load(Ordering::Relaxed));
        if now.ticks_since(credit) >= self.settings.lateness() {
            // A newer lateness that this overwrites costs its waiter the catching up, never an admission.
            self.lateness_credit.store(0, Ordering::Relaxed);
        }
        match self.attempt(ask, Waited::Since(now), &turn) {
            (Attempt::Admitted(ticket), _) => Some(ticket),
            _ => None,
        }
    }

    /// When a waiter that joins now would be admitted, and the count of changes of settings before the look: a change between
    /// that and the join has the newcomer judged anew.
    pub(super) fn ready_behind_queue(&self, ask: &Ask, now: Instant) -> (ReadyAt<'_>, u64) {
        let (ahead, is_head, claim, changes) = {
            let mut queue = self.queue.lock();
            let (ahead, is_head) = queue.ahead(ask);
            (ahead, is_head, queue.claim().map(|(_, claim)| claim), queue.changes())
        };
        // A newcomer that will be the head takes its own place, but the turn of the queue is its turn.
        let claim = claim.filter(|&claim| !is_head || self.is_turn_only(claim));
        (self.ready_behind(ask, now, ahead, is_head, claim), changes)
    }

    /// When a waiter that is not the head is admitted, behind `ahead`.
    fn ready_behind_head(&self, ask: &Ask, now: Instant, ahead: Ask) -> ReadyAt<'_> {
        let claim = self.queue.lock().claim();
        self.ready_behind(ask, now, ahead, false, claim.map(|(_, claim)| claim))
    }

    /// When a waiter behind `ahead` is admitted. `claim` is its own place if it is the head, else that of the head.
    fn ready_behind(&self, ask: &Ask, now: Instant, ahead: Ask, is_head: bool, claim: Option<QueueKey>) -> ReadyAt<'_> {
        let place = Place {
            ahead,
            is_head,
            is_claimant: false,
            watcher: &self.listener,
            claim: &Cell::new(claim),
        };
        let reading = ClockReading::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, &reading, &place))
    }
}

impl<L: Limiter + 'static> PolicyCore<L> {
    /// A transition of the queue. Runs no users' code, but may wake the waiters whose instant has come.
    fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut Queue<L::Ticket>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        // Relaxed: see `waiting`.
        self.in_order.store(queue.in_order(), Ordering::Relaxed);
        self.parked.store(queue.parked(), Ordering::Relaxed);
        let mistimed = queue.is_mistimed();
        drop(queue);
        if mistimed {
            self.set_timer();
        }
        result
    }

    /// Joins the queue, unless it is full. Returns the key, and the wakers of the waiters that were evicted for it: to be woken
    /// by [`wake_evicted`](Self::wake_evicted) once the key has an owner. The newcomer drives the queue.
    pub(super) fn join(
        self: &Arc<Self>,
        ask: Ask,
        since: Instant,
        deadline: Option<Instant>,
        known: (Option<Instant>, bool, u64),
    ) -> Option<(WaiterKey, Vec<Waker>)> {
        if self.rejects_early() {
            return None;
        }
        let most = self.settings.max_queue();
        self.change(|queue| {
            let evicted = queue.evict_for(&ask, most, &self.settings.order)?;
            Some((queue.push(ask, since, deadline, known), evicted))
        })
    }

    /// Wakes the evicted waiters, whichever of them panic. The first panic goes on to the newcomer.
    pub(super) fn wake_evicted(evicted: Vec<Waker>) {
        wake_all(evicted);
    }

    fn rejects_early(&self) -> bool {
        let Some(from) = self.settings.reject_early_from else {
            return false;
        };
        let rate = rejection_probability(self.waiting(), from, self.settings.max_queue());
        // Relaxed: only that no number comes twice.
        rate > 0.0 && nth_fraction(0, self.draws.fetch_add(1, Ordering::Relaxed)) < rate
    }

    /// The owner of `key` drives the queue and looks. `None` while it waits: then `waker` is woken when its wait ends, or when
    /// it has to drive the queue.
    pub(super) fn look(self: &Arc<Self>, key: WaiterKey, waker: &Waker) -> Option<WaitEnd<L::Ticket>> {
        self.drive();
        let now = self.clock.now();
        let mut clone = None;
        let mut found = self.change(|queue| queue.look(key, now, waker, &mut clone));
        if matches!(found, Lookup::NeedsWaker) {
            // Outside the lock: users' code. Nothing is in hand that its panic could lose.
            clone = Some(waker.clone());
            found = self.change(|queue| queue.look(key, now, waker, &mut clone));
        }
        drop_quietly(clone);
        let Lookup::Ended(ended) = found else { return None };
        if matches!(ended, WaitEnd::Expired(_)) {
            self.drive();
        }
        Some(ended)
    }

    /// The owner of `key` goes before it has seen the end of its wait. Each step is done whichever waker or leg panics; the
    /// first panic goes on.
    pub(super) fn leave(self: &Arc<Self>, key: WaiterKey) {
        let (ended, waker, was_head) = self.change(|queue| queue.leave(key));
        drop_quietly(waker);
        let mut panics = PanicCollector::default();
        match ended {
            Some(WaitEnd::Admitted(ticket)) => {
                panics.run(|| self.limiter.cancel(ticket, &ClockReading::new()));
                panics.run(|| self.dispatch());
            }
            Some(WaitEnd::Panicked(panic)) => drop_quietly(panic),
            _ if was_head => panics.run(|| self.dispatch()),
            _ => {}
        }
        panics.end();
    }

    /// Admits the waiters that can be admitted, from the front; after the dispatch that runs on this thread, if one does. The
    /// first panic of a waker goes on at the end.
    pub(super) fn dispatch(self: &Arc<Self>) {
        notify::call(Arc::clone(self) as Arc<dyn Notified>);
    }

    /// The same for a waiter that is polled: the panics of others are none of its own, and are dropped.
    fn drive(self: &Arc<Self>) {
        quietly(|| self.dispatch());
    }

    fn dispatch_now(self: &Arc<Self>) {
        if !self.change(Queue::begin) {
            return;
        }
        // Panics of users' code are kept until the end: neither the flag nor a claim stays behind.
        let mut panics = PanicCollector::default();
        let emptied = loop {
            match self.change(Queue::next) {
                Next::Inherit(key, claim) if self.is_turn_only(claim) => {
                    self.change(|queue| queue.set_claim(key, Some(claim)));
                    continue;
                }
                Next::Inherit(_, claim) | Next::GiveBack(claim) => {
                    panics.run(|| self.give_back(claim));
                    continue;
                }
                Next::Look(waits) => {
                    self.recheck_parked(&waits, &mut panics);
                    continue;
                }
                Next::Ask(head) if self.serve_head(&head, &mut panics) => continue,
                Next::Ask(_) | Next::Nothing => {}
            }
            let mut first = true;
            while let Some(waits) = self.change(|queue| queue.next_to_revalidate(mem::take(&mut first))) {
                self.revalidate(&waits, &mut panics);
            }
            if let Some(emptied) = self.change(Queue::stop) {
                break emptied;
            }
        };
        if emptied {
            panics.run(|| self.notify.notify_all());
        }
        panics.end();
    }

    /// Ends a wait that cannot end well under the settings in force, as a newcomer at the same place would be refused. A leg
    /// that panics is asked again when the turn comes.
    #[cold]
    fn revalidate(self: &Arc<Self>, waits: &WaiterView, panics: &mut PanicCollector) {
        let now = self.clock.now();
        let check = || {
            let ready = self.ready_behind_head(&waits.ask, now, waits.ahead);
            let refusal = self.refuses(&waits.ask, &ready, now, waits.deadline, None);
            let behind = || Some(Box::new(waits.ahead));
            let ended = refusal.map(|refusal| match refusal.reason() {
                Reason::TimedOut => WaitEnd::Expired(behind()),
                _ => WaitEnd::Refused(behind()),
            });
            (ended, ready.is_raise().then(|| ready.event_by()))
        };
        match catch_unwind(AssertUnwindSafe(check)) {
            Ok((Some(ended), _)) => _ = self.end(waits.key, ended, panics),
            Ok((None, Some(until))) => self.change(|queue| queue.park(waits.key, until)),
            Ok((None, None)) => {}
            Err(panic) => drop_quietly(panic),
        }
    }

    /// Looks whether a parked waiter still waits for larger limits. It holds no place in any leg's queue, and takes none from
    /// the head: it becomes the head only once it fits.
    #[cold]
    fn recheck_parked(self: &Arc<Self>, waits: &WaiterView, panics: &mut PanicCollector) {
        let now = self.clock.now();
        if waits.deadline.is_some_and(|deadline| now > deadline) {
            self.end(waits.key, WaitEnd::Expired(None), panics);
            return;
        }
        let look = || self.ready_for_head(&waits.ask, now, &Cell::new(None));
        match catch_unwind(AssertUnwindSafe(look)) {
            Ok(ready) if ready.is_never() || ready.refuses_at_once(now).is_some() => {
                self.end(waits.key, WaitEnd::Refused(Some(Box::new(waits.ahead))), panics);
            }
            Ok(ready) if ready.is_raise() => self.change(|queue| queue.park(waits.key, ready.event_by())),
            Ok(_) => self.change(|queue| queue.unpark(waits.key)),
            Err(panic) => _ = self.panicked(waits.key, waits.panicked, panic, panics),
        }
    }

    /// Tries to end the wait of the head. True when the next waiter may be served, or the same is to be tried again.
    fn serve_head(self: &Arc<Self>, head: &Head, panics: &mut PanicCollector) -> bool {
        let Head {
            key,
            ask,
            waited,
            deadline,
            claim: held,
            panicked,
        } = *head;
        if deadline.is_some_and(|deadline| self.clock.now() > deadline) {
            return self.end(key, WaitEnd::Expired(None), panics);
        }
        let claim = Cell::new(held);
        let (attempt, turn) = match catch_unwind(AssertUnwindSafe(|| self.attempt(&ask, waited, &claim))) {
            Ok(asked) => asked,
            Err(panic) => (Attempt::Panicked(panic), None),
        };
        // A claim that was not redeemed is kept only while its own leg is the one that refuses.
        let leg = turn.as_ref().map(|turn| QueueId::of_queue(turn.wait_queue));
        let kept = claim.get().filter(|kept| leg == Some(kept.wait_queue()));
        if held.is_some() && kept.is_none() {
            let goes_on = matches!(attempt, Attempt::At(_) | Attempt::OnEvent(..));
            let moved = goes_on.then(|| self.clock.after(self.clock.now(), PAUSE));
            self.change(|queue| {
                queue.set_claim(key, None);
                moved.into_iter().for_each(|pause| queue.note_move(pause));
            });
            if let Some(claim) = claim.get() {
                panics.run(|| self.give_back(claim));
            }
        }
        match attempt {
            Attempt::Admitted(ticket) => self.end(key, WaitEnd::Admitted(ticket), panics),
            Attempt::Refused => self.end(key, WaitEnd::Refused(None), panics),
            Attempt::OnRaise(until) => {
                self.change(|queue| queue.park(key, until));
                true
            }
            Attempt::Panicked(panic) => self.panicked(key, panicked, panic, panics),
            Attempt::At(at) if deadline.is_some_and(|deadline| at > deadline) => {
                self.end(key, WaitEnd::Expired(None), panics)
            }
            Attempt::At(_) | Attempt::OnEvent(..) => {
                let (due, ready_since) = match attempt {
                    Attempt::OnEvent(by, ready_since) => (by, ready_since),
                    Attempt::At(at) => (Some(at), None),
                    _ => (None, None),
                };
                let mut behind = false;
                let now = self.clock.now();
                let pauses = self.change(|queue| queue.pauses(now));
                if let (Some(turn), None, false) = (turn, kept, pauses) {
                    // Granted at once or later, the waker makes this queue be dispatched.
                    let waker = Waker::from(Arc::clone(self));
                    match catch_unwind(AssertUnwindSafe(|| turn.join(&ask, &waker))) {
                        Ok(claim) => self.change(|queue| queue.set_claim(key, Some(claim))),
                        Err(panic) => return self.panicked(key, panicked, panic, panics),
                    }
                    behind = turn.behind;
                }
                self.change(|queue| queue.set_due(key, due, ready_since));
                // The waiters before it in the leg's queue may have left before it joined.
                behind
            }
        }
    }

    /// Always true: the wait of `key` is over, here or because its owner has gone.
    fn end(self: &Arc<Self>, key: WaiterKey, ended: WaitEnd<L::Ticket>, panics: &mut PanicCollector) -> bool {
        match self.change(|queue| queue.end(key, ended)) {
            Ok(Some(waker)) => panics.wake(waker),
            Ok(None) => {}
            Err(WaitEnd::Admitted(ticket)) => panics.run(|| self.limiter.cancel(ticket, &ClockReading::new())),
            Err(WaitEnd::Panicked(panic)) => drop_quietly(panic),
            Err(_) => {}
        }
        true
    }

    /// A leg has panicked for a waiter. It is asked once more. If it has panicked `before`, the wait ends, and the panic goes
    /// on in the owner's poll. Always true.
    fn panicked(
        self: &Arc<Self>,
        key: WaiterKey,
        before: bool,
        panic: Box<dyn Any + Send>,
        panics: &mut PanicCollector,
    ) -> bool {
        if before {
            return self.end(key, WaitEnd::Panicked(panic), panics);
        }
        drop_quietly(panic);
        self.change(|queue| queue.note_panic(key));
        true
    }

    fn give_back(&self, claim: QueueKey) {
        if let Some(wait_queue) = self.limiter.wait_queue(claim.wait_queue()) {
            wait_queue.leave(claim);
        }
    }

    /// Sets the timer to the instant that the queue asks for now.
    #[cold]
    fn set_timer(self: &Arc<Self>) {
        loop {
            let mut timer = self.timer.lock();
            let Some(at) = self.queue.lock().arm() else {
                if let Some(timer) = &mut *timer {
                    timer.sleep.disarm();
                }
                return;
            };
            let Timer { sleep, waker } = &mut **timer.get_or_insert_with(|| {
                let wakes = Arc::new(TimerWaker(Arc::downgrade(self)));
                Box::new(Timer {
                    sleep: Sleep::of_no_runtime(&self.clock, at),
                    waker: Waker::from(wakes),
                })
            });
            sleep.reset(at);
            if Pin::new(sleep).poll(&mut Context::from_waker(waker)).is_pending() {
                return;
            }
            drop(timer);
            // The instant has come meanwhile.
            self.fire();
        }
    }

    /// Wakes the waiters whose instant has come.
    fn fire(&self) {
        let now = self.clock.now();
        let wakers = self.queue.lock().fire(now);
        wake_all_quietly(wakers);
    }

    /// The refusal of a wait until `deadline` that cannot end well, by the readiness of the legs: of a newcomer, and of a
    /// waiter after a change of settings. `asked` is the refusal of a leg, if it was asked.
    pub(super) fn refuses<'a>(
        &'a self,
        ask: &Ask,
        ready: &ReadyAt<'a>,
        now: Instant,
        deadline: Option<Instant>,
        asked: Option<Refusal<'a>>,
    ) -> Option<Refusal<'a>> {
        let late = || {
            let due = ready.not_before()?;
            (due > deadline?).then(|| self.failed(Reason::TimedOut, ask, ready.leg(), ready.reason(), Some(due), now))
        };
        let never = ready.never_admits(ask.count());
        never.or_else(|| self.at_once(ask, ready, now, asked)).or_else(late)
    }

    /// The refusal of a wait that failed by `leg`, which is not ready for `cause` before `due`. Without a leg the queue was in
    /// the way.
    fn failed<'a>(
        &'a self,
        reason: Reason,
        ask: &Ask,
        leg: &'a str,
        cause: Reason,
        due: Option<Instant>,
        now: Instant,
    ) -> Refusal<'a> {
        let wait = due.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
        match leg {
            "" => Refusal::new(reason, super::QUEUE, ask.count(), wait),
            leg => Refusal::new(cause, leg, ask.count(), wait).with_reason(reason),
        }
    }

    /// The refusal of a newcomer that finds the queue full.
    pub(super) fn full<'a>(&'a self, ask: &Ask, ready: &ReadyAt<'a>, now: Instant) -> Refusal<'a> {
        let due = ready.not_before().filter(|_| !ready.is_event());
        let refusal = self.failed(Reason::QueueFull, ask, ready.leg(), ready.reason(), due, now);
        self.unless_spent(refusal, ready, now)
    }

    /// The same refusal, which no instant ends if a leg has nothing that comes back by itself.
    fn unless_spent<'a>(&'a self, refusal: Refusal<'a>, ready: &ReadyAt<'_>, now: Instant) -> Refusal<'a> {
        match ready.has_no_instant() {
            true => refusal.with_wait(Wait::Until(Due::never(&self.clock, now))),
            false => refusal,
        }
    }

    /// The readiness of the legs for a waiter whose wait has ended, at the place at which it was judged.
    fn ready_where(&self, ask: &Ask, ahead: &AskAhead, now: Instant) -> ReadyAt<'_> {
        match ahead {
            Some(ahead) => self.ready_behind_head(ask, now, **ahead),
            None => {
                let reading = ClockReading::at(&self.clock, now);
                self.limiter.ready_at(Demand::new(ask, &reading))
            }
        }
    }

    /// Refuses a waiter that no wait can help, by the refusal of the leg that is the reason. The legs are asked once more, as
    /// for a caller that does not wait: a request that has become admissible meanwhile is admitted, unless others wait before
    /// it.
    pub(super) fn refuse(
        &self,
        ask: &Ask,
        ahead: &AskAhead,
        ticket: &mut Option<L::Ticket>,
    ) -> Result<(), Refusal<'_>> {
        let now = self.clock.now();
        let ready = self.ready_where(ask, ahead, now);
        if let Some(never) = ready.never_admits(ask.count()) {
            return Err(never);
        }
        if ahead.is_some() && self.has_before() {
            let others = Refusal::new(Reason::Saturated, super::QUEUE, ask.count(), Wait::Event);
            return Err(self.at_once(ask, &ready, now, None).unwrap_or(others));
        }
        match admit_in(&self.limiter, ask, ticket) {
            Err(refusal) => Err(self.at_once(ask, &ready, now, Some(refusal)).unwrap_or(refusal)),
            Ok(()) => Ok(()),
        }
    }

    /// The refusal by a leg that is not waited for and not ready, if there is one: `asked`, where it is that leg's.
    fn at_once<'a>(
        &'a self,
        ask: &Ask,
        ready: &ReadyAt<'a>,
        now: Instant,
        asked: Option<Refusal<'a>>,
    ) -> Option<Refusal<'a>> {
        let (reason, leg, at) = ready.refuses_at_once(now)?;
        let wait = at.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
        let made = || Refusal::new(reason, leg, ask.count(), wait);
        Some(asked.filter(|asked| asked.leg() == leg).unwrap_or_else(made))
    }

    /// The refusal of a waiter that was evicted.
    pub(super) fn why_evicted(&self, ask: &Ask) -> Refusal<'_> {
        let now = self.clock.now();
        self.full(ask, &self.ready_where(ask, &None, now), now)
    }

    /// The refusal of a waiter that was not admitted in time.
    pub(super) fn why_late(&self, ask: &Ask, ahead: &AskAhead) -> Refusal<'_> {
        let now = self.clock.now();
        let ready = self.ready_where(ask, ahead, now);
        // An unforeseen event binds more than a known instant; but a judgement went by the instant alone.
        let (leg, cause) = match ahead.is_some() || ready.event_leg().is_empty() {
            true => (ready.leg(), ready.reason()),
            false => (ready.event_leg(), ready.event_reason()),
        };
        let refusal = self.failed(Reason::TimedOut, ask, leg, cause, ready.not_before(), now);
        self.unless_spent(refusal, &ready, now)
    }
}

/// The waker of the timer. It asks no limiter: it runs on a thread that all timers share, where a panic has no owner.
struct TimerWaker<L: Limiter>(Weak<PolicyCore<L>>);

impl<L: Limiter + 'static> Wake for TimerWaker<L> {
    fn wake(self: Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            core.fire();
            core.set_timer();
            // This may be the last handle: then the legs are dropped here.
            drop_quietly(core);
        }
    }
}

impl<L: Limiter + 'static> Notified for PolicyCore<L> {
    fn note(&self, anew: bool) {
        self.queue.lock().ring(anew);
    }
    fn notified(self: Arc<Self>) {
        self.dispatch_now();
    }
}

impl<L: Limiter + 'static> Wake for PolicyCore<L> {
    fn wake(self: Arc<Self>) {
        notify::call(self);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.dispatch();
    }
}
