#![doc = include_str!("README.md")]

use super::bounds::{Bounds, Settings};
use super::line::{Behind, Ended, Found, Head, Key, Next, Queue, Timing, Waited, Waits};
use crate::core::ask::{Ask, Demand, Place};
use crate::core::limiter::{Limiter, admit_in};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::rng::nth_fraction;
use crate::shed::early_rejection_probability;
use crate::sync::notify::{self, Listener, Notified, Notify};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::wait_queue::{QueueId, QueueKey, WaitQueue};
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

/// What stands behind a policy and all its waiting futures.
pub(crate) struct Core<L: Limiter> {
    pub(crate) limiter: L,
    pub(crate) clock: Clock,
    pub(crate) settings: Bounds,
    /// Rings when the queue has emptied: for a policy that is itself a leg of another.
    pub(crate) notify: Notify,
    queue: Mutex<Queue<L::Ticket>>,
    /// Made when it is first needed. Its lock is taken before the queue's.
    timer: Mutex<Option<Box<Timer>>>,
    /// How many wait in order, and how many for larger limits. Written under the queue's lock; read without it as a hint.
    in_order: AtomicUsize,
    parked: AtomicUsize,
    /// The instant as of which the latest waiter was admitted, in ticks.
    last: AtomicU64,
    /// The same if it was late, by the timer that fired or by the task that was polled; zero when nobody was.
    credit: AtomicU64,
    watcher: Listener,
    /// How often chance has been asked.
    draws: AtomicU64,
}

/// The queue's timer, and what it wakes. It belongs to no runtime: one that drives it only now and then, or not any more,
/// holds up no waiter of another.
struct Timer {
    sleep: Sleep,
    waker: Waker,
}

/// How an attempt for a waiter ended.
enum Attempt<T> {
    Admitted(T),
    /// Look again at this instant.
    Later(Instant),
    /// Look again when something happens, or at this instant; and since when nothing but a turn is missing, if it is.
    OnEvent(Option<Instant>, Option<Instant>),
    /// Look again when a `Notify` fires, or at this instant. Others are served meanwhile.
    OnRaise(Option<Instant>),
    /// Waiting changes nothing, or it is not waited for.
    Hopeless,
    /// A leg has panicked.
    Panicked(Box<dyn Any + Send>),
}

/// The queue to join.
struct Turn<'a> {
    wait_queue: &'a dyn WaitQueue,
    units: u64,
    /// Those before it there may go before it has joined, without its being told.
    behind: bool,
}

impl<'a> Turn<'a> {
    fn new(wait_queue: &'a dyn WaitQueue, units: u64) -> Self {
        Self {
            wait_queue,
            units,
            behind: wait_queue.holds_nothing(),
        }
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

impl<L: Limiter + 'static> Core<L> {
    pub(crate) fn new(limiter: L, clock: Clock, settings: Settings) -> Arc<Self> {
        let timing = Timing {
            grace: clock.ticks_of(GRACE),
            exact: clock.is_manual(),
        };
        Arc::new_cyclic(|weak| Self {
            limiter,
            clock,
            settings: Bounds::new(settings),
            notify: Notify::new(),
            queue: Mutex::new(Queue::new(settings.manner.newest_first, timing)),
            timer: Mutex::new(None),
            in_order: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            credit: AtomicU64::new(0),
            watcher: Listener::from_weak(weak.clone()),
            draws: AtomicU64::new(0),
        })
    }
}

impl<L: Limiter> Core<L> {
    /// How many wait.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        // Relaxed: a hint. Whoever overlooks a waiter that is just joining is concurrent with it.
        self.in_order.load(Ordering::Relaxed) + self.parked.load(Ordering::Relaxed)
    }

    /// True when a newcomer has waiters before it.
    #[inline]
    pub(crate) fn has_before(&self) -> bool {
        self.in_order.load(Ordering::Relaxed) > 0 && !self.settings.manner.newest_first
    }

    /// True when none waits and none was just served late: a newcomer may be admitted on the spot.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting() == 0 && !self.was_late()
    }

    /// True when a waiter has just been served late.
    pub(crate) fn was_late(&self) -> bool {
        self.credit.load(Ordering::Relaxed) != 0
    }

    /// The turn that this queue has at a leg which hands nothing over. It belongs to the queue, not to the head of the
    /// moment.
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

    /// Asks the legs for a newcomer while others wait, if none of them is before it.
    #[cold]
    pub(crate) fn reserve_past_waiters(
        &self,
        demand: Demand<'_>,
        ticket: &mut Option<L::Ticket>,
    ) -> Result<(), Refusal<'_>> {
        if self.has_before() {
            return Err(Refusal::new(
                Reason::Saturated,
                super::LINE,
                demand.units(),
                Wait::Event,
            ));
        }
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant: false,
            watcher: &self.watcher,
            claim: &Cell::new(self.own_turn()),
        };
        self.limiter.reserve_in(demand.at_place(&place), ticket)
    }

    /// The earliest instant as of which somebody may be admitted at `now`: not before it came, nor before the last look
    /// at the legs found that it could be, nor before whoever was last served.
    fn floor(&self, waited: Waited, now: Instant) -> Instant {
        let earliest = Instant::from_ticks(now.ticks().saturating_sub(self.settings.lateness()));
        // Relaxed: a stale value changes by how much a late waiter is made up for, within the same cap.
        let last = Instant::from_ticks(self.last.load(Ordering::Relaxed));
        let credit = Instant::from_ticks(self.credit.load(Ordering::Relaxed));
        let from = match waited {
            Waited::Since(since) if credit > earliest => since.min(credit),
            Waited::Since(since) => since,
            Waited::Due(Some(due)) if due <= now => due,
            // Something has loosened before the due instant: this is the instant of that.
            Waited::Due(_) => now,
        };
        from.max(earliest).max(last).min(now)
    }

    /// Asks the legs for somebody in line, as of the instant at which its turn came.
    fn attempt(
        &self,
        ask: &Ask,
        waited: Waited,
        claim: &Cell<Option<QueueKey>>,
    ) -> (Attempt<L::Ticket>, Option<Turn<'_>>) {
        let now = self.clock.now();
        let floor = self.floor(waited, now);
        let is_claimant = self.is_claimant(claim);
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant,
            watcher: &self.watcher,
            claim,
        };
        // Rates first, by looking only: no turn of a queue is asked for, and wasted, before they are ready.
        let reading = ClockReading::at(&self.clock, floor);
        let ready = self.limiter.ready_at(Demand::waiting(ask, &reading, &place));
        if ready.is_never() {
            return (Attempt::Hopeless, None);
        }
        if ready.refuses_at_once(now).is_some() {
            return (Attempt::Hopeless, None);
        }
        if ready.is_raise() {
            return (Attempt::OnRaise(ready.event_by()), None);
        }
        let as_of = ready.not_before().unwrap_or(floor).max(floor);
        if as_of > now {
            // A place in a queue that has not handed over yet holds nothing: it is kept, or another queue would always be first
            // there. What it is handed before the instant goes on to the next.
            let waiting = Turn::of_event(&ready).filter(|_| is_claimant && ready.is_event());
            // Nor is the turn of a rate taken while something else is waited for that nothing hands over: at its instant it would
            // keep others waiting in vain.
            let in_vain = ready.is_event() && ready.turn().is_none();
            let turn = waiting.or_else(|| Turn::until_due(&ready).filter(|_| !in_vain));
            let was_due = matches!(waited, Waited::Due(Some(due)) if due <= now);
            if was_due && turn.as_ref().is_some_and(|turn| turn.behind) {
                // Those before it would have been served by then: it lacks its turn alone.
                return (Attempt::OnEvent(Some(as_of), Some(floor)), turn);
            }
            return (Attempt::Later(as_of), turn);
        }
        if ready.is_event() {
            // From then on, since what those before it take is still to be taken as of earlier instants.
            let since = ready.is_due().then_some(floor);
            return (Attempt::OnEvent(ready.event_by(), since), Turn::of_event(&ready));
        }
        let reading = ClockReading::at(&self.clock, as_of);
        match self.limiter.try_reserve(Demand::waiting(ask, &reading, &place)) {
            Ok(ticket) => {
                self.last.store(as_of.ticks(), Ordering::Relaxed);
                self.note_lateness(now);
                (Attempt::Admitted(ticket), None)
            }
            // Another was faster: until when is waited is for the legs to say again.
            Err(refusal) => match refusal.wait() {
                Wait::Until(due) => {
                    let ready = self.ready_for_head(ask, now, claim);
                    if ready.is_due() {
                        return (Attempt::OnEvent(ready.event_by(), Some(now)), Turn::of_event(&ready));
                    }
                    let kept = || self.limiter.wait_queue(claim.get()?.wait_queue());
                    let kept = kept()
                        .filter(|kept| kept.holds_nothing())
                        .map(|kept| Turn::new(kept, 0));
                    (Attempt::Later(due.instant()), Turn::until_due(&ready).or(kept))
                }
                Wait::Turn(wait_queue) => {
                    let by = self.ready_for_head(ask, now, &Cell::new(None)).event_by();
                    let turn = Turn::new(wait_queue, refusal.units());
                    (Attempt::OnEvent(by, None), Some(turn))
                }
                Wait::Event => {
                    let by = self.ready_for_head(ask, now, &Cell::new(None)).event_by();
                    (Attempt::OnEvent(by, None), None)
                }
                Wait::Never => (Attempt::Hopeless, None),
            },
        }
    }

    /// What the legs say of the head that was refused although all of them looked ready.
    #[cold]
    fn ready_for_head(&self, ask: &Ask, now: Instant, claim: &Cell<Option<QueueKey>>) -> ReadyAt<'_> {
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant: self.is_claimant(claim),
            watcher: &self.watcher,
            claim,
        };
        let reading = ClockReading::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, &reading, &place))
    }

    /// At `now` a waiter is served that was due at `last`: what comes next may catch up.
    pub(crate) fn note_lateness(&self, now: Instant) {
        // Relaxed: see `floor`.
        let last = self.last.load(Ordering::Relaxed);
        let late = if last < now.ticks() { last } else { 0 };
        self.credit.store(late, Ordering::Relaxed);
    }

    /// Admits somebody who comes while nobody waits, but somebody has just been served late. Forgets that lateness
    /// once it is older than the cap.
    pub(crate) fn admit_after_late(&self, ask: &Ask) -> Option<L::Ticket> {
        let now = self.clock.now();
        let turn = Cell::new(self.own_turn());
        let credit = Instant::from_ticks(self.credit.load(Ordering::Relaxed));
        if now.ticks_since(credit) >= self.settings.lateness() {
            // A newer lateness that this overwrites costs its waiter the catching up, never an admission.
            self.credit.store(0, Ordering::Relaxed);
        }
        match self.attempt(ask, Waited::Since(now), &turn) {
            (Attempt::Admitted(ticket), _) => Some(ticket),
            _ => None,
        }
    }

    /// When a waiter that joins now would be admitted.
    ///
    /// Also returns how often the settings had changed before they were looked at: what changes between that and the join makes
    /// the newcomer be judged anew.
    pub(crate) fn ready_behind_line(&self, ask: &Ask, now: Instant) -> (ReadyAt<'_>, u64) {
        let (ahead, is_head, claim, changes) = {
            let queue = self.queue.lock();
            let is_head = self.settings.manner.newest_first || queue.in_order() == 0;
            // A newcomer that will be the head takes its own place.
            let claim = queue.claim().filter(|_| !is_head).map(|(_, claim)| claim);
            (queue.ahead(), is_head, claim, queue.changes())
        };
        (self.ready_behind(ask, now, ahead, is_head, claim), changes)
    }

    /// When a waiter that is not the head is admitted, behind `ahead`.
    fn ready_behind_head(&self, ask: &Ask, now: Instant, ahead: Ask) -> ReadyAt<'_> {
        let claim = self.queue.lock().claim();
        self.ready_behind(ask, now, ahead, false, claim.map(|(_, claim)| claim))
    }

    /// When a waiter behind `ahead` is admitted, whose own place, if it is the head, or whose head's is `claim`.
    fn ready_behind(&self, ask: &Ask, now: Instant, ahead: Ask, is_head: bool, claim: Option<QueueKey>) -> ReadyAt<'_> {
        let place = Place {
            ahead,
            is_head,
            is_claimant: false,
            watcher: &self.watcher,
            claim: &Cell::new(claim),
        };
        let reading = ClockReading::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, &reading, &place))
    }
}

impl<L: Limiter + 'static> Core<L> {
    /// A transition of the queue. Runs no users' code, but may wake those whose instant has come.
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

    /// Joins the queue, unless it is full. Returns the place, and the wakers of those that were evicted for it: to be woken
    /// by [`wake_evicted`](Self::wake_evicted) once the place has an owner. The newcomer drives the queue.
    pub(crate) fn join(
        self: &Arc<Self>,
        ask: Ask,
        since: Instant,
        deadline: Option<Instant>,
        known: (Option<Instant>, bool, u64),
    ) -> Option<(Key, Vec<Waker>)> {
        if self.turns_away_early() {
            return None;
        }
        let most = self.settings.max_queue();
        self.change(|queue| {
            let evicted = queue.make_room(&ask, most, &self.settings.manner)?;
            Some((queue.push(ask, since, deadline, known), evicted))
        })
    }

    /// Wakes those that were evicted for a newcomer, whichever of them panic: the first panic goes on to the newcomer.
    pub(crate) fn wake_evicted(evicted: Vec<Waker>) {
        wake_all(evicted);
    }

    fn turns_away_early(&self) -> bool {
        let Some(from) = self.settings.early else { return false };
        let rate = early_rejection_probability(self.waiting(), from, self.settings.max_queue());
        // Relaxed: only that no number comes twice.
        rate > 0.0 && nth_fraction(0, self.draws.fetch_add(1, Ordering::Relaxed)) < rate
    }

    /// The owner of `key` drives the queue and looks. `None` as long as it waits: `waker` is woken then when its wait ends,
    /// or when it has to drive the queue.
    pub(crate) fn look(self: &Arc<Self>, key: Key, waker: &Waker) -> Option<Ended<L::Ticket>> {
        self.drive();
        let now = self.clock.now();
        let mut clone = None;
        let mut found = self.change(|queue| queue.look(key, now, waker, &mut clone));
        if matches!(found, Found::Unheard) {
            // Outside the lock: users' code. Nothing is in hand that its panic could lose.
            clone = Some(waker.clone());
            found = self.change(|queue| queue.look(key, now, waker, &mut clone));
        }
        drop_quietly(clone);
        let Found::Ended(ended) = found else { return None };
        if matches!(ended, Ended::Expired(_)) {
            self.drive();
        }
        Some(ended)
    }

    /// The owner of `key` goes, having been told nothing. All that follows is done whichever waker or leg panics; the first
    /// panic goes on.
    pub(crate) fn leave(self: &Arc<Self>, key: Key) {
        let (ended, waker, was_head) = self.change(|queue| queue.leave(key));
        drop_quietly(waker);
        let ended = ended.filter(|ended| !seeded!("line_leaks_granted") || !matches!(ended, Ended::Admitted(_)));
        let mut panics = PanicCollector::default();
        match ended {
            Some(Ended::Admitted(ticket)) => {
                panics.run(|| self.limiter.cancel(ticket, &ClockReading::new()));
                panics.run(|| self.dispatch());
            }
            Some(Ended::Panicked(panic)) => drop_quietly(panic),
            _ if was_head && !seeded!("line_head_leaves_quietly") => panics.run(|| self.dispatch()),
            _ => {}
        }
        panics.end();
    }

    /// Admits the waiters that can be admitted, from the front. Runs after the dispatch that is running on this thread, if
    /// one is. The first panic of a waker goes on when all is done.
    pub(crate) fn dispatch(self: &Arc<Self>) {
        notify::call(Arc::clone(self) as Arc<dyn Notified>);
    }

    /// The same for a waiter that is polled: it has not caused what other waiters panic with.
    fn drive(self: &Arc<Self>) {
        quietly(|| self.dispatch());
    }

    fn dispatch_now(self: &Arc<Self>) {
        if !self.change(Queue::begin) {
            return;
        }
        // What users' code panics with is kept until the end: neither the flag nor a claim stays behind.
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
                    self.look_again_at(&waits, &mut panics);
                    continue;
                }
                Next::Ask(head) if self.serve(&head, &mut panics) => continue,
                Next::Ask(_) | Next::Nothing => {}
            }
            let mut first = true;
            while let Some(waits) = self.change(|queue| queue.unjudged(mem::take(&mut first))) {
                self.judge(&waits, &mut panics);
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

    /// Ends a wait that cannot end well under the settings in force: as a newcomer at the same place would be refused. Where a leg
    /// panics it is asked again when the turn comes.
    #[cold]
    fn judge(self: &Arc<Self>, waits: &Waits, panics: &mut PanicCollector) {
        let now = self.clock.now();
        let judge = || {
            let ready = self.ready_behind_head(&waits.ask, now, waits.ahead);
            let refusal = self.refuses(&waits.ask, &ready, now, waits.deadline, None);
            let behind = || Some(Box::new(waits.ahead));
            let ended = refusal.map(|refusal| match refusal.reason() {
                Reason::TimedOut => Ended::Expired(behind()),
                _ => Ended::Hopeless(behind()),
            });
            (ended, ready.is_raise().then(|| ready.event_by()))
        };
        match catch_unwind(AssertUnwindSafe(judge)) {
            Ok((Some(ended), _)) => _ = self.end(waits.key, ended, panics),
            Ok((None, Some(until))) => self.change(|queue| queue.park(waits.key, until)),
            Ok((None, None)) => {}
            Err(panic) => drop_quietly(panic),
        }
    }

    /// Looks whether one that was passed over still waits for larger limits. It holds no place in any leg's queue meanwhile, and
    /// takes none from the head: it becomes the head only once it fits.
    #[cold]
    fn look_again_at(self: &Arc<Self>, waits: &Waits, panics: &mut PanicCollector) {
        let now = self.clock.now();
        if waits.deadline.is_some_and(|deadline| now > deadline) {
            self.end(waits.key, Ended::Expired(None), panics);
            return;
        }
        let look = || self.ready_for_head(&waits.ask, now, &Cell::new(None));
        match catch_unwind(AssertUnwindSafe(look)) {
            Ok(ready) if ready.is_never() || ready.refuses_at_once(now).is_some() => {
                self.end(waits.key, Ended::Hopeless(Some(Box::new(waits.ahead))), panics);
            }
            Ok(ready) if ready.is_raise() => self.change(|queue| queue.park(waits.key, ready.event_by())),
            Ok(_) => self.change(|queue| queue.unpark(waits.key)),
            Err(panic) => _ = self.panicked(waits.key, waits.panicked, panic, panics),
        }
    }

    /// Tries to end the wait of the head. True when the next may be served, or the same is to be tried again.
    fn serve(self: &Arc<Self>, head: &Head, panics: &mut PanicCollector) -> bool {
        let Head {
            key,
            ask,
            waited,
            deadline,
            claim: held,
            panicked,
        } = *head;
        if deadline.is_some_and(|deadline| self.clock.now() > deadline) {
            return self.end(key, Ended::Expired(None), panics);
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
            self.change(|queue| queue.set_claim(key, None));
            if let Some(claim) = claim.get() {
                panics.run(|| self.give_back(claim));
            }
        }
        match attempt {
            Attempt::Admitted(ticket) => self.end(key, Ended::Admitted(ticket), panics),
            Attempt::Hopeless => self.end(key, Ended::Hopeless(None), panics),
            Attempt::OnRaise(until) => {
                self.change(|queue| queue.park(key, until));
                true
            }
            Attempt::Panicked(panic) => self.panicked(key, panicked, panic, panics),
            Attempt::Later(at) if deadline.is_some_and(|deadline| at > deadline) => {
                self.end(key, Ended::Expired(None), panics)
            }
            Attempt::Later(_) | Attempt::OnEvent(..) => {
                let (due, ready_since) = match attempt {
                    Attempt::OnEvent(by, ready_since) => (by, ready_since),
                    Attempt::Later(at) => (Some(at), None),
                    _ => (None, None),
                };
                let mut behind = false;
                if let (Some(turn), None) = (turn, kept) {
                    // Granted at once or later, the waker makes this queue be dispatched.
                    let waker = Waker::from(Arc::clone(self));
                    match catch_unwind(AssertUnwindSafe(|| turn.wait_queue.join(turn.units, &waker))) {
                        Ok(claim) => self.change(|queue| queue.set_claim(key, Some(claim))),
                        Err(panic) => return self.panicked(key, panicked, panic, panics),
                    }
                    behind = turn.behind && !seeded!("turns_join_blindly");
                }
                self.change(|queue| queue.set_due(key, due, ready_since));
                // Those before it in the leg's queue may have gone before it joined.
                behind
            }
        }
    }

    /// Always true: the wait of `key` is over, here or because its owner has gone.
    fn end(self: &Arc<Self>, key: Key, ended: Ended<L::Ticket>, panics: &mut PanicCollector) -> bool {
        match self.change(|queue| queue.end(key, ended)) {
            Ok(Some(waker)) => panics.wake(waker),
            Ok(None) => {}
            Err(Ended::Admitted(ticket)) => panics.run(|| self.limiter.cancel(ticket, &ClockReading::new())),
            Err(Ended::Panicked(panic)) => drop_quietly(panic),
            Err(_) => {}
        }
        true
    }

    /// A leg has panicked when it was asked for the head. It is asked once more; if it has panicked `before`, the wait ends,
    /// and the panic goes on in the owner's poll. Always true.
    fn panicked(
        self: &Arc<Self>,
        key: Key,
        before: bool,
        panic: Box<dyn Any + Send>,
        panics: &mut PanicCollector,
    ) -> bool {
        if before {
            return self.end(key, Ended::Panicked(panic), panics);
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

    /// Sets the timer to what the queue wants as of now.
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
                let alarm = Arc::new(Alarm(Arc::downgrade(self)));
                Box::new(Timer {
                    sleep: Sleep::of_no_runtime(&self.clock, at),
                    waker: Waker::from(alarm),
                })
            });
            sleep.reset(at);
            if Pin::new(sleep).poll(&mut Context::from_waker(waker)).is_pending()
                || seeded!("line_sleeps_through_its_instant")
            {
                return;
            }
            drop(timer);
            // The instant has come meanwhile.
            self.fire();
        }
    }

    /// Wakes those whose instant has come.
    fn fire(&self) {
        let now = self.clock.now();
        let wakers = self.queue.lock().fire(now);
        wake_all_quietly(wakers);
    }

    /// Why a wait until `deadline` cannot end well, by what the legs say of it: of a newcomer, and of a waiter after a change of
    /// settings. `asked` is how a leg has refused it, if it was asked.
    pub(crate) fn refuses<'a>(
        &'a self,
        ask: &Ask,
        ready: &ReadyAt<'a>,
        now: Instant,
        deadline: Option<Instant>,
        asked: Option<Refusal<'a>>,
    ) -> Option<Refusal<'a>> {
        let late = || {
            let due = ready.not_before()?;
            (due > deadline?).then(|| self.late(ask, ready.leg(), Some(due), now))
        };
        let never = ready.never_admits(ask.count());
        never.or_else(|| self.at_once(ask, ready, now, asked)).or_else(late)
    }

    /// The refusal of a waiter that was not admitted in time by `leg`, which is ready at `due`.
    fn late<'a>(&'a self, ask: &Ask, leg: &'a str, due: Option<Instant>, now: Instant) -> Refusal<'a> {
        let wait = due.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
        Refusal::new(Reason::TimedOut, leg, ask.count(), wait)
    }

    /// What the legs say of a waiter whose wait has ended, at the place at which it was judged.
    fn ready_where(&self, ask: &Ask, behind: &Behind, now: Instant) -> ReadyAt<'_> {
        match behind {
            Some(ahead) => self.ready_behind_head(ask, now, **ahead),
            None => {
                let reading = ClockReading::at(&self.clock, now);
                self.limiter.ready_at(Demand::new(ask, &reading))
            }
        }
    }

    /// Refuses for good, or at once, what was found not to be worth waiting: by the refusal of the leg that is the reason.
    /// It is asked for once more, as for a caller that does not wait. What has become admissible meanwhile is admitted, unless
    /// others wait before it.
    pub(crate) fn refuse(&self, ask: &Ask, behind: &Behind, ticket: &mut Option<L::Ticket>) -> Result<(), Refusal<'_>> {
        let now = self.clock.now();
        let ready = self.ready_where(ask, behind, now);
        if let Some(never) = ready.never_admits(ask.count()) {
            return Err(never);
        }
        if behind.is_some() && self.has_before() {
            let others = Refusal::new(Reason::Saturated, super::LINE, ask.count(), Wait::Event);
            return Err(self.at_once(ask, &ready, now, None).unwrap_or(others));
        }
        match admit_in(&self.limiter, ask, ticket) {
            Err(refusal) => Err(self.at_once(ask, &ready, now, Some(refusal)).unwrap_or(refusal)),
            Ok(()) => Ok(()),
        }
    }

    /// The refusal by a leg that is not waited for, if there is one that is not ready: `asked`, where it is that leg's.
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

    /// Why a waiter was not admitted in time.
    pub(crate) fn why_late(&self, ask: &Ask, behind: &Behind) -> Refusal<'_> {
        let now = self.clock.now();
        let ready = self.ready_where(ask, behind, now);
        let leg = match (ready.event_leg(), ready.leg()) {
            ("", "") => super::LINE,
            // What could not be foreseen bound more than an instant that was known; but that alone was judged.
            (event, leg) if behind.is_some() || event.is_empty() => leg,
            (event, _) => event,
        };
        self.late(ask, leg, ready.not_before(), now)
    }
}

/// What the timer wakes. It asks no limiter: it runs on a thread that all timers share, where a panic has no owner.
struct Alarm<L: Limiter>(Weak<Core<L>>);

impl<L: Limiter + 'static> Wake for Alarm<L> {
    fn wake(self: Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            core.fire();
            core.set_timer();
            // This may be the last handle: then the legs are dropped here.
            drop_quietly(core);
        }
    }
}

impl<L: Limiter + 'static> Notified for Core<L> {
    fn note(&self, anew: bool) {
        self.queue.lock().ring(anew);
    }
    fn notified(self: Arc<Self>) {
        self.dispatch_now();
    }
}

impl<L: Limiter + 'static> Wake for Core<L> {
    fn wake(self: Arc<Self>) {
        notify::call(self);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.dispatch();
    }
}
