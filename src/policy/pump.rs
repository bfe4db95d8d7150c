#![doc = include_str!("README.md")]

use super::bounds::{Bounds, Settings};
use super::line::{Ended, Entry, Found, Key, Line};
use crate::algo::chance::nth_fraction;
use crate::algo::shed::rejection_rate;
use crate::ask::{Ask, Demand, Place};
use crate::limiter::Limiter;
use crate::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::sync::bell::Bell;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::turn::{Claim, Turnstile, TurnstileId};
use crate::sync::watch::{self, Watch, Watcher};
use crate::time::{Clock, Instant, Phase};
use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

/// What stands behind a policy and all its waiting futures.
pub(crate) struct Core<L: Limiter> {
    pub(crate) limiter: L,
    pub(crate) clock: Clock,
    pub(crate) settings: Bounds,
    /// Rings when the line has emptied: for a policy that is itself a leg of another.
    pub(crate) bell: Bell,
    line: Mutex<Line<L::Ticket>>,
    /// How many wait. Written under the line's lock; read without it as a hint.
    waiting: AtomicUsize,
    /// The instant as of which the latest waiter was admitted, in ticks.
    last: AtomicU64,
    /// The same if it was late, by the timer that fired or by the task that was polled; zero when nobody was.
    credit: AtomicU64,
    watcher: Watcher,
    /// How often chance has been asked.
    draws: AtomicU64,
}

/// How an attempt for somebody in line ended.
enum Attempt<T> {
    Admitted(T),
    /// Look again at this instant.
    Later(Instant),
    /// Look again when something happens, or at this instant; and whether nothing but a turn has been missing, and since
    /// when.
    OnEvent(Option<Instant>, Option<Instant>),
    /// Waiting changes nothing.
    Hopeless,
}

/// What is known of when somebody could have been admitted.
#[derive(Clone, Copy)]
enum Waited {
    /// It came then, and the legs have not been asked for it since.
    Since(Instant),
    /// The legs have been asked: not before this instant, or not before some event.
    Due(Option<Instant>),
}

impl Waited {
    fn of(entry: &Entry) -> Self {
        if entry.tried {
            Self::Due(entry.ready_since.or(entry.due))
        } else {
            Self::Since(entry.since)
        }
    }
}

/// The queue to join.
struct Turn<'a> {
    turnstile: &'a dyn Turnstile,
    units: u64,
    /// Those before it there may go before it has joined, without its being told.
    behind: bool,
}

impl<'a> Turn<'a> {
    fn new(turnstile: &'a dyn Turnstile, units: u64) -> Self {
        Self {
            turnstile,
            units,
            behind: turnstile.holds_nothing(),
        }
    }

    /// The queue of an instant that is to come.
    fn until_due(ready: &ReadyAt<'a>) -> Option<Self> {
        ready.due_turn().map(|due| Self {
            behind: due.behind,
            ..Self::new(due.turnstile, due.units)
        })
    }

    /// The queue of an event.
    fn of_event(ready: &ReadyAt<'a>) -> Option<Self> {
        ready.turn().map(|(turnstile, units)| Self::new(turnstile, units))
    }
}

impl<L: Limiter + 'static> Core<L> {
    pub(crate) fn new(limiter: L, clock: Clock, settings: Settings) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            limiter,
            clock,
            settings: Bounds::new(settings),
            bell: Bell::new(),
            line: Mutex::new(Line::new(settings.manner.newest_first)),
            waiting: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            credit: AtomicU64::new(0),
            watcher: Watcher::from_weak(weak.clone()),
            draws: AtomicU64::new(0),
        })
    }
}

impl<L: Limiter> Core<L> {
    /// How many wait.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        // Relaxed: a hint. Whoever overlooks a waiter that is just joining is concurrent with it.
        self.waiting.load(Ordering::Relaxed)
    }

    /// True when whoever comes has somebody before it.
    #[inline]
    pub(crate) fn has_before(&self) -> bool {
        self.waiting() > 0 && !self.settings.manner.newest_first
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
    fn own_turn(&self) -> Option<Claim> {
        let claim = self.under_lock(|line| line.claim)?.1;
        self.is_turn_only(claim).then_some(claim)
    }

    fn is_turn_only(&self, claim: Claim) -> bool {
        let turnstile = self.limiter.turnstile(claim.turnstile());
        turnstile.is_some_and(Turnstile::holds_nothing)
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
            watcher: &self.watcher,
            claim: &Cell::new(self.own_turn()),
        };
        self.limiter.reserve_in(demand.at_place(&place), ticket)
    }

    fn under_lock<R>(&self, change: impl FnOnce(&mut Line<L::Ticket>) -> R) -> R {
        let mut line = self.line.lock();
        let result = change(&mut line);
        // Relaxed: see `waiting`.
        self.waiting.store(line.len(), Ordering::Relaxed);
        result
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
        claim: &Cell<Option<Claim>>,
    ) -> (Attempt<L::Ticket>, Option<Turn<'_>>) {
        let now = self.clock.now();
        let floor = self.floor(waited, now);
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            watcher: &self.watcher,
            claim,
        };
        // Rates first, by looking only: no turn of a queue is asked for, and wasted, before they are ready.
        let phase = Phase::at(&self.clock, floor);
        let ready = self.limiter.ready_at(Demand::waiting(ask, phase.pass(), &place));
        if ready.is_never() {
            return (Attempt::Hopeless, None);
        }
        let as_of = ready.not_before().unwrap_or(floor).max(floor);
        if as_of > now {
            return (Attempt::Later(as_of), Turn::until_due(&ready));
        }
        if ready.is_event() {
            let since = ready.is_due().then_some(as_of);
            return (Attempt::OnEvent(ready.event_by(), since), Turn::of_event(&ready));
        }
        let phase = Phase::at(&self.clock, as_of);
        match self.limiter.try_reserve(Demand::waiting(ask, phase.pass(), &place)) {
            Ok(ticket) => {
                self.last.store(as_of.ticks(), Ordering::Relaxed);
                self.note_lateness(now);
                (Attempt::Admitted(ticket), None)
            }
            // Somebody else was faster: until when is waited is for the legs to say again.
            Err(refusal) => match refusal.wait() {
                Wait::Until(due) => {
                    let ready = self.ready_for_head(ask, now, claim);
                    let kept = || self.limiter.turnstile(claim.get()?.turnstile());
                    let kept = kept()
                        .filter(|kept| kept.holds_nothing())
                        .map(|kept| Turn::new(kept, 0));
                    (Attempt::Later(due.instant()), Turn::until_due(&ready).or(kept))
                }
                Wait::Turn(turnstile) => {
                    let by = self.ready_for_head(ask, now, &Cell::new(None)).event_by();
                    let turn = Turn::new(turnstile, refusal.units());
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
    fn ready_for_head(&self, ask: &Ask, now: Instant, claim: &Cell<Option<Claim>>) -> ReadyAt<'_> {
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            watcher: &self.watcher,
            claim,
        };
        let phase = Phase::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, phase.pass(), &place))
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

    /// When somebody who joins now would be admitted.
    pub(crate) fn ready_behind_line(&self, ask: &Ask, now: Instant) -> ReadyAt<'_> {
        let (ahead, is_head, claim) = self.under_lock(|line| {
            let is_head = self.settings.manner.newest_first || line.len() == 0;
            (line.ahead(), is_head, line.claim.map(|(_, claim)| claim))
        });
        let place = Place {
            ahead,
            is_head,
            watcher: &self.watcher,
            // A newcomer that will be the head takes its own place.
            claim: &Cell::new(claim.filter(|_| !is_head)),
        };
        let phase = Phase::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, phase.pass(), &place))
    }
}

impl<L: Limiter + 'static> Core<L> {
    /// Joins the line, unless it is full; those who have to go for it are sent away.
    pub(crate) fn join(
        self: &Arc<Self>,
        ask: Ask,
        since: Instant,
        deadline: Option<Instant>,
        due: Option<Instant>,
    ) -> Option<Key> {
        if self.turns_away_early() {
            return None;
        }
        let most = self.settings.max_queue();
        let (key, gone) = self.under_lock(|line| {
            let gone = line.make_room(&ask, most, &self.settings.manner)?;
            Some((line.push(ask, since, deadline, due), gone))
        })?;
        // Those who were first are followed by others: the newcomer pumps as soon as it looks.
        gone.into_iter().for_each(Waker::wake);
        Some(key)
    }

    fn turns_away_early(&self) -> bool {
        let Some(from) = self.settings.early else { return false };
        let rate = rejection_rate(self.waiting(), from, self.settings.max_queue());
        // Relaxed: only that no number comes twice.
        rate > 0.0 && nth_fraction(0, self.draws.fetch_add(1, Ordering::Relaxed)) < rate
    }

    /// The owner of `key` looks for its turn, having pumped.
    pub(crate) fn look(self: &Arc<Self>, key: Key, waker: &Waker) -> Found<L::Ticket> {
        let now = self.clock.now();
        self.pump();
        let mut waker = Some(waker.clone());
        let (found, old) = self.under_lock(|line| line.look(key, now, &mut waker));
        drop((old, waker));
        if matches!(found, Found::Ended(Ended::Expired)) {
            self.pump();
        }
        found
    }

    /// The timer of `key` has fired: its turn comes, whether its owner is polled or not.
    pub(crate) fn due(self: &Arc<Self>, key: Key) {
        self.pump();
        if let Some(waker) = self.under_lock(|line| line.take_waker(key)) {
            waker.wake();
        }
    }

    /// The owner of `key` goes, having been told nothing.
    pub(crate) fn leave(self: &Arc<Self>, key: Key) {
        let (ended, waker, was_head) = self.under_lock(|line| line.leave(key));
        drop(waker);
        let ended = ended.filter(|ended| !seeded!("line_leaks_granted") || !matches!(ended, Ended::Admitted(_)));
        if let Some(Ended::Admitted(ticket)) = ended {
            self.limiter.cancel(ticket, Phase::new().pass());
            self.pump();
        } else if was_head && !seeded!("line_head_leaves_quietly") {
            self.pump();
        }
    }

    /// Admits whoever can be admitted, from the front. Runs after the pass that is running on this thread, if one is.
    pub(crate) fn pump(self: &Arc<Self>) {
        watch::call(Arc::clone(self) as Arc<dyn Watch>);
    }

    fn pump_now(self: &Arc<Self>) {
        let taken = self.under_lock(|line| {
            if line.pumping && !seeded!("line_forgets_again") {
                line.again = true;
            }
            !std::mem::replace(&mut line.pumping, true)
        });
        if !taken {
            return;
        }
        let pumping = Pumping(self);
        loop {
            let (head, stale, had_waiters) = self.under_lock(|line| {
                line.again = false;
                let head = line
                    .head()
                    .map(|(key, entry)| (key, entry.ask, Waited::of(entry), entry.deadline));
                let stale = line
                    .claim
                    .take_if(|(owner, _)| head.is_none_or(|(key, ..)| key != *owner));
                (head, stale, line.len() > 0)
            });
            if let Some((_, claim)) = stale {
                match head {
                    Some((key, ..)) if self.is_turn_only(claim) => {
                        self.under_lock(|line| line.claim = Some((key, claim)));
                    }
                    _ => self.give_back(claim),
                }
            }
            let Some((key, ask, waited, deadline)) = head else {
                if self.stop() {
                    std::mem::forget(pumping);
                    if !had_waiters {
                        self.bell.ring();
                    }
                    return;
                }
                continue;
            };
            if !self.serve(key, &ask, waited, deadline) && self.stop() {
                std::mem::forget(pumping);
                return;
            }
        }
    }

    /// Stops pumping, unless something has happened since the line was last looked at.
    fn stop(&self) -> bool {
        self.under_lock(|line| {
            if !line.again {
                line.pumping = false;
            }
            !line.again
        })
    }

    /// Tries to end the wait of the head. True when it has ended, or is to be tried again.
    fn serve(self: &Arc<Self>, key: Key, ask: &Ask, waited: Waited, deadline: Option<Instant>) -> bool {
        if deadline.is_some_and(|deadline| self.clock.now() > deadline) {
            return self.end(key, Ended::Expired);
        }
        let held = self.under_lock(|line| line.claim.map(|(_, claim)| claim));
        let claim = Cell::new(held);
        let (attempt, turn) = self.attempt(ask, waited, &claim);
        // A claim that was not redeemed is kept only while its own leg is the one that refuses.
        if let Some(kept) = claim.get() {
            let same_leg =
                (turn.as_ref()).is_some_and(|turn| TurnstileId::of_queue(turn.turnstile) == kept.turnstile());
            if !same_leg {
                self.under_lock(|line| line.claim = None);
                self.give_back(kept);
            }
        } else if held.is_some() {
            self.under_lock(|line| line.claim = None);
        }
        match attempt {
            Attempt::Admitted(ticket) => self.end(key, Ended::Admitted(ticket)),
            Attempt::Hopeless => self.end(key, Ended::Hopeless),
            Attempt::Later(at) if deadline.is_some_and(|deadline| at > deadline) => self.end(key, Ended::Expired),
            Attempt::Later(at) => {
                let changed = self.stand_in(turn, key);
                self.wait_until(key, Some(at), None);
                changed
            }
            Attempt::OnEvent(by, ready_since) => {
                let changed = self.stand_in(turn, key);
                self.wait_until(key, by, ready_since);
                changed
            }
        }
    }

    /// Joins the queue of a leg, unless the head stands there already. True when those who were before it there may have
    /// gone since.
    fn stand_in(self: &Arc<Self>, turn: Option<Turn<'_>>, key: Key) -> bool {
        let Some(turn) = turn else { return false };
        if self.under_lock(|line| line.claim.is_some()) {
            return false;
        }
        // Granted at once or later, the waker makes this line look again.
        let claim = turn.turnstile.join(turn.units, &Waker::from(Arc::clone(self)));
        self.under_lock(|line| line.claim = Some((key, claim)));
        turn.behind
    }

    fn wait_until(&self, key: Key, due: Option<Instant>, ready_since: Option<Instant>) {
        let waker = self.under_lock(|line| line.set_due(key, due, ready_since));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Always true: the wait of `key` is over, here or because its owner has gone.
    fn end(&self, key: Key, ended: Ended<L::Ticket>) -> bool {
        match self.under_lock(|line| line.end(key, ended)) {
            Ok(waker) => {
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Err(Ended::Admitted(ticket)) => self.limiter.cancel(ticket, Phase::new().pass()),
            Err(_) => {}
        }
        true
    }

    fn give_back(&self, claim: Claim) {
        if let Some(turnstile) = self.limiter.turnstile(claim.turnstile()) {
            turnstile.leave(claim);
        }
    }

    /// Why somebody in line was not admitted in time.
    pub(crate) fn why_late(&self, ask: &Ask) -> Refusal<'_> {
        let now = self.clock.now();
        let phase = Phase::at(&self.clock, now);
        let ready = self.limiter.ready_at(Demand::new(ask, phase.pass()));
        // What nobody could foresee bound more than an instant that was known.
        let leg = match (ready.event_leg(), ready.leg()) {
            ("", "") => super::LINE,
            ("", leg) | (leg, _) => leg,
        };
        let wait = match ready.not_before() {
            Some(at) => Wait::Until(Due::at(&self.clock, now, at)),
            None => Wait::Event,
        };
        Refusal::new(Reason::TimedOut, leg, ask.count(), wait)
    }
}

/// Ends the pumping when a leg panics, so that the line is not stopped for ever.
struct Pumping<'a, L: Limiter>(&'a Core<L>);

impl<L: Limiter> Drop for Pumping<'_, L> {
    fn drop(&mut self) {
        self.0.under_lock(|line| line.pumping = false);
    }
}

impl<L: Limiter + 'static> Watch for Core<L> {
    fn look_again(self: Arc<Self>) {
        self.pump_now();
    }
}

impl<L: Limiter + 'static> Wake for Core<L> {
    fn wake(self: Arc<Self>) {
        watch::call(self);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.pump();
    }
}
