//! The breaker itself: one word that says whether to admit, a window beside it, and a machine behind a lock that only a
//! circuit that is not closed is asked by.
//!
//! The word is the period and the state. It is written by the holder of the machine's lock, and read by everybody. While it says closed, an admission is one load, and a result is recorded by the window without a
//! lock. What has been admitted carries the word in its ticket: a result whose word is no longer the current one is
//! late, and decides nothing.

use super::builder::{BreakerBuilder, Classifier, Listener};
use super::count_window::CountWindow;
use super::event::BreakerEvent;
use super::history::Learnt;
use super::limiter::BreakerTicket;
use super::open_time::{OpenTime, Trip};
use super::streak::Streak;
use super::window::Window;
use super::word::Word;
use crate::algo::breaker::{Alarm, Answer, Counts, Judge, Machine, Mark, State, Verdict};
use crate::algo::chance::nth_fraction;
use crate::limiter::Outcome;
use crate::refusal::{Due, Reason, Refusal, Wait};
use crate::sync::notify::Notify;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering, fence};
use crate::sync::unwind::{Rest, ask, both};
use crate::time::{Clock, ClockReading, Instant};
use std::cell::Cell;
use std::fmt;
use std::time::Duration;

pub(super) const LEG: &str = "breaker";
/// How long a circuit is open whose open time could not be computed.
const UNCOMPUTED: Duration = Duration::from_secs(30);

/// Refuses work that is likely to fail, until probes say that it would succeed.
///
/// ```text
///            thresholds                 open time over, somebody asks
///   Closed --------------> Open ------------------------------------> HalfOpen
///      ^                    ^                                          |    |
///      |                    '----- too many probes bad, or none back --'    |
///      '------------------------------ enough probes good ------------------'
/// ```
///
/// Closed, it judges the last calls, or those of the last so much time, by the part that failed, by the part that was
/// slow, and by failures in a row. Open, it refuses with [`Reason::CircuitOpen`], and says how long it will. Then so many
/// probes go through, and once all have a result they are judged by the same rates.
///
/// It learns from [`Permit::finish`](crate::Permit::finish): success, failure, overload. A permit that is merely dropped
/// says nothing. So the breaker stands in a policy like any limiter, and in front of what costs something.
///
/// # Probes
/// A probe is a permit of one trial. It comes back with its result; without one (dropped, cancelled, its task aborted or
/// panicked, refused by a later leg) it is free again. A half-open circuit so cannot get stuck; it opens again when no
/// probe is left and the latest has been away for the [time-out of probes](BreakerBuilder::probe_timeout), at which a
/// policy that waits for one wakes. Every change of state begins a new period, and a result of an older period decides
/// nothing.
///
/// An ask of several is as many calls with one result. One of more calls than the trial has results to come waits until no
/// probe is out, and is the rest of the trial.
///
/// # Fairness
/// The first call after the open time is the first probe. A [`Policy`](crate::Policy) does not wait for a circuit that is not
/// closed: it refuses at once with `CircuitOpen`, those that wait already as well, unless the breaker is built to
/// [wait](BreakerBuilder::wait_while_open).
///
/// # Memory ordering
/// None is promised to callers: a breaker orders no work after other work.
///
/// The states are those of M. Nygard, *Release It!* (2007).
///
/// ```
/// # use tollgate::{Ask, BreakerState, CircuitBreaker, LimiterExt, ManualClock, OpenTime, Outcome};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let breaker = CircuitBreaker::builder()
///     .count_window(10)
///     .minimum_calls(4)
///     .failure_rate(0.5)
///     .probes(1)
///     .open_for(OpenTime::fixed(Duration::from_secs(5)))
///     .clock(&clock)
///     .build()?;
/// for outcome in [Outcome::Success, Outcome::Failure, Outcome::Success, Outcome::Failure] {
///     breaker.try_admit(Ask::one()).unwrap().finish(outcome);
/// }
/// let refused = breaker.try_admit(Ask::one()).unwrap_err();
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(5)));
///
/// clock.advance(Duration::from_secs(5));
/// let probe = breaker.try_admit(Ask::one()).unwrap();
/// assert!(breaker.try_admit(Ask::one()).is_err());
/// probe.finish(Outcome::Success);
/// assert_eq!(breaker.state(), BreakerState::Closed);
/// # Ok::<(), tollgate::BreakerError>(())
/// ```
pub struct CircuitBreaker {
    /// Written under the machine's lock.
    word: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) config: Config,
    pub(super) window: Window,
    pub(super) streak: Streak,
    pub(super) machine: Mutex<Machine>,
    pub(super) clock: Clock,
    pub(super) notify: Notify,
}

/// What the builder sets.
pub(super) struct Config {
    /// A policy waits until it admits.
    pub(super) waits: bool,
    /// It matters how long work takes.
    pub(super) times_calls: bool,
    /// Results are judged by rates alone, and as they are.
    pub(super) is_plain: bool,
    pub(super) judge: Judge,
    pub(super) alarm: Alarm,
    pub(super) learnt: Option<Learnt>,
    /// In ticks.
    pub(super) slow_after: Option<u64>,
    pub(super) consecutive: Option<u64>,
    pub(super) open_time: OpenTime,
    pub(super) classifier: Option<Classifier>,
    pub(super) listener: Option<Listener>,
    pub(super) seed: u64,
}

impl CircuitBreaker {
    /// A breaker with the defaults that [`BreakerBuilder`] lists, on the real clock.
    pub fn new() -> Self {
        Self::builder().build().expect("the defaults are within bounds")
    }

    /// Settings, to be built.
    pub fn builder() -> BreakerBuilder {
        BreakerBuilder::new()
    }

    pub(super) fn of(config: Config, window: Window, probes: u64, overdue_after: u64, clock: Clock) -> Self {
        Self {
            word: AtomicU64::new(Word::new(State::Closed, 0).bits()),
            refused: AtomicU64::new(0),
            config,
            window,
            streak: Streak::new(),
            machine: Mutex::new(Machine::new(probes, overdue_after)),
            clock,
            notify: Notify::new(),
        }
    }

    #[inline]
    pub(super) fn word(&self) -> Word {
        // Acquire: whoever sees a period sees its empty window. Pairs with (P) in `publish`.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Says what the machine has become. By the holder of its lock.
    fn publish(&self, machine: &Machine, now: u64) {
        let (state, period) = (machine.state(), machine.period());
        if state.records() {
            // Nobody may record in the older period once the window begins anew.
            self.word
                .store(Word::new(State::Open, period).bits(), Ordering::Release);
            self.window.reset(period, now);
            self.streak.reset(period);
        }
        self.refused.store(0, Ordering::Relaxed);
        // (P) Release: the window is empty before anybody records in it. Pairs with `word`.
        self.word.store(Word::new(state, period).bits(), Ordering::Release);
    }

    /// Changes the machine, and tells everybody if that changed its state: after the lock.
    pub(super) fn change<R>(&self, now: u64, change: impl FnOnce(&mut Machine) -> R) -> R {
        let (result, event) = {
            let mut machine = self.machine.lock();
            let (from, period) = (machine.state(), machine.period());
            let result = change(&mut machine);
            let changed = machine.period() != period;
            if changed {
                self.publish(&machine, now);
            }
            (result, changed.then(|| self.event(from, &machine, now)))
        };
        if let Some(event) = event {
            self.tell(event);
        }
        result
    }

    /// Wakers and the listener are users' code. Each is called whichever of the others panic, and in a panic as well.
    fn tell(&self, event: BreakerEvent) {
        let listen = || {
            if let Some(listener) = &self.config.listener {
                listener(event);
            }
        };
        both(|| self.notify.notify_all(), listen);
    }

    fn event(&self, from: State, machine: &Machine, now: u64) -> BreakerEvent {
        let open = machine.state() == State::Open;
        let judged = match from {
            _ if open => machine.counts(),
            State::HalfOpen => machine.trial(),
            _ => Counts::default(),
        };
        let until = Instant::from_ticks(machine.until());
        BreakerEvent {
            from: from.into(),
            to: machine.state().into(),
            period: machine.period(),
            calls: judged.calls,
            failed: judged.failed,
            slow: judged.slow,
            open_for: open.then(|| self.clock.between(Instant::from_ticks(now), until)),
        }
    }

    /// The machine's answer to whoever does not find the circuit closed.
    #[cold]
    pub(super) fn ask_slow(&self, units: u64, now: Instant) -> Result<BreakerTicket, Refusal<'_>> {
        loop {
            let ticks = now.ticks();
            let before = seeded!("breaker_asks_twice").then(|| self.machine.lock().answer(units, 0, ticks));
            let asked = Cell::new(None);
            // The first probe changes the state. Where that is told in vain, the probe comes back.
            let back = Rest::new(|| {
                if let Some((Answer::Goes, word, _)) = asked.get() {
                    self.give_back(BreakerTicket::new(word, units, ticks));
                }
            });
            let (answer, word, counts) = self.change(ticks, |machine| {
                let answer = machine.ask(units, ticks);
                let all = (answer, Word::new(machine.state(), machine.period()), machine.counts());
                asked.set(Some(all));
                all
            });
            back.forget();
            let wait = match before.filter(|before| *before == Answer::Goes).unwrap_or(answer) {
                Answer::Goes => return Ok(BreakerTicket::new(word, units, ticks)),
                Answer::Until(until) => Wait::Until(Due::at(&self.clock, now, Instant::from_ticks(until))),
                Answer::OnEvent | Answer::OnProbe(_) => Wait::Event,
                Answer::Overdue => {
                    self.open(word.period(), counts, now);
                    continue;
                }
            };
            // Relaxed: a statistic.
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::new(Reason::CircuitOpen, LEG, units, wait));
        }
    }

    /// What `outcome` says of work that began at `started`, if it says anything.
    fn classify(&self, outcome: Outcome, started: u64, reading: &ClockReading) -> Option<Mark> {
        let outcome = match &self.config.classifier {
            None => outcome,
            Some(classify) => {
                let from = Instant::from_ticks(started);
                ask(|| classify(outcome, self.clock.between(from, reading.now(&self.clock))))?
            }
        };
        let failed = match outcome {
            Outcome::Success => false,
            Outcome::Failure | Outcome::Overload => true,
            Outcome::Ignored => return None,
        };
        let slow = self.is_slow(started, reading);
        Some(Mark { failed, slow })
    }

    /// The window of the last calls, where it is all that matters to the one call of `ticket`.
    #[inline(always)]
    pub(super) fn simple_window(&self, ticket: BreakerTicket) -> Option<&CountWindow> {
        match &self.window {
            Window::Count(window)
                if self.config.is_plain & !self.config.times_calls
                    && ticket.units() == 1
                    && ticket.word().state() == State::Closed =>
            {
                Some(window)
            }
            _ => None,
        }
    }

    /// One call of a closed circuit has succeeded or not, where the last calls are judged by failures.
    #[inline(always)]
    pub(super) fn record_simple(&self, window: &CountWindow, word: Word, failed: bool, reading: &ClockReading) {
        let (period, mark) = (word.period(), Mark { failed, slow: false });
        if window.record_one(period, mark, &self.config.alarm) {
            self.judge(period, false, reading);
        }
    }

    /// Work has ended that was admitted with this ticket, whose word is the current one.
    #[inline(never)]
    pub(super) fn finish_slow(&self, ticket: BreakerTicket, outcome: Outcome, reading: &ClockReading) {
        let word = ticket.word();
        match &self.window {
            Window::Time(window)
                if self.config.is_plain && word.state() == State::Closed && outcome != Outcome::Ignored =>
            {
                let failed = outcome != Outcome::Success;
                let slow = self.is_slow(ticket.started, reading);
                let (period, now) = (word.period(), reading.now(&self.clock).ticks());
                if window.record(Mark { failed, slow }, ticket.units(), now, || self.is_in(period)) {
                    self.judge(period, false, reading);
                }
            }
            _ => self.record(ticket, outcome, reading),
        }
    }

    /// True when work that began at `started` took too long.
    #[inline]
    fn is_slow(&self, started: u64, reading: &ClockReading) -> bool {
        let took = || reading.now(&self.clock).ticks().saturating_sub(started);
        self.config.slow_after.is_some_and(|after| took() > after)
    }

    /// True when `period` is not over. Read once the word has been found to be the current one.
    #[inline]
    fn is_in(&self, period: u64) -> bool {
        // Relaxed: what comes before this is an acquiring load, which is what makes the end of a period seen.
        Word::from_bits(self.word.load(Ordering::Relaxed)).period() == period
    }

    #[inline(never)]
    fn record(&self, ticket: BreakerTicket, outcome: Outcome, reading: &ClockReading) {
        let word = ticket.word();
        if word.state() == State::Disabled {
            return;
        }
        // A classifier that panics has said nothing.
        let back = Rest::new(|| self.give_back(ticket));
        let mark = self.classify(outcome, ticket.started, reading);
        back.forget();
        match mark {
            Some(mark) => self.record_marked(word, mark, ticket.units(), reading),
            None => self.give_back(ticket),
        }
    }

    #[inline(never)]
    fn record_marked(&self, word: Word, mark: Mark, units: u64, reading: &ClockReading) {
        let (state, period) = (word.state(), word.period());
        if state.records() {
            self.record_call(state, period, mark, units, reading);
        } else if state != State::Disabled {
            self.record_probe(period, mark, units, reading);
        }
    }

    fn record_call(&self, state: State, period: u64, mark: Mark, units: u64, reading: &ClockReading) {
        let now = match self.window.is_timed() {
            true => reading.now(&self.clock).ticks(),
            false => 0,
        };
        let alarm = &self.config.alarm;
        let look = self
            .window
            .record(period, mark, units, now, alarm, || self.is_in(period));
        if let Some(learnt) = &self.config.learnt {
            learnt.record(mark, units, &self.config.judge);
        }
        let too_many = self
            .config
            .consecutive
            .is_some_and(|most| self.streak.record(period, mark.failed, units) >= most);
        if (look || too_many) && state == State::Closed {
            self.judge(period, too_many, reading);
        }
    }

    #[cold]
    fn judge(&self, period: u64, condemned: bool, reading: &ClockReading) {
        // SeqCst: what this thread has recorded comes before the fence, what it judges by after it. Of a result that makes
        // the window large enough and one that makes it bad enough, whichever passes its fence last sees both.
        fence(Ordering::SeqCst);
        let now = match self.window.is_timed() {
            true => reading.now(&self.clock).ticks(),
            false => 0,
        };
        let condemns = |counts: Counts| condemned || self.judge_of(counts.calls).condemns(counts);
        if !condemns(self.window.counts(period, now)) {
            return;
        }
        let counts = self.window.recount(period, now);
        if condemns(counts) {
            self.open(period, counts, reading.now(&self.clock));
        }
    }

    /// True when its thresholds follow what is usual.
    pub(super) fn has_learnt(&self) -> bool {
        self.config.learnt.as_ref().is_some_and(Learnt::has_any)
    }

    /// The thresholds for so many results.
    pub(super) fn judge_of(&self, calls: u64) -> Judge {
        let judge = self.config.judge;
        match &self.config.learnt {
            Some(learnt) => learnt.adapt(judge, calls),
            None => judge,
        }
    }

    #[cold]
    fn record_probe(&self, period: u64, mark: Mark, units: u64, reading: &ClockReading) {
        let now = reading.now(&self.clock);
        let (verdict, results) = self.change(now.ticks(), |machine| {
            let judge = self.judge_of(machine.probes());
            let verdict = machine.record_probe(period, mark, units, &judge);
            let results = machine.counts();
            if verdict == Verdict::Healthy {
                machine.go(State::Closed);
            }
            (verdict, results)
        });
        if verdict == Verdict::Sick {
            self.open(period, results, now);
        }
    }

    /// What was taken comes back without a result.
    #[inline]
    pub(super) fn give_back(&self, ticket: BreakerTicket) {
        if ticket.word().state() == State::HalfOpen {
            self.give_back_slow(ticket);
        }
    }

    #[cold]
    fn give_back_slow(&self, ticket: BreakerTicket) {
        if seeded!("breaker_keeps_probe") {
            return;
        }
        let free = self.machine.lock().give_back(ticket.word().period(), ticket.units());
        if free && !seeded!("breaker_quiet_probe") {
            self.notify.notify_all();
        }
    }

    /// Opens, unless `period` is over. The open time may be computed by the user's code: outside the lock, and if that
    /// panics the circuit opens all the same.
    fn open(&self, period: u64, reason: Counts, now: Instant) {
        let mut opening = Opening {
            breaker: self,
            period,
            reason,
            now,
            time: UNCOMPUTED,
        };
        let attempt = self.machine.lock().opened().saturating_add(1);
        let trip = Trip {
            attempt,
            calls: reason.calls,
            failed: reason.failed,
            slow: reason.slow,
        };
        if let Some(learnt) = &self.config.learnt {
            learnt.drop_batch();
        }
        let open_time = &self.config.open_time;
        if let Some(time) = ask(|| open_time.after(trip, nth_fraction(self.config.seed, period))) {
            opening.time = time;
        }
    }
}

/// A circuit that is about to open: it does when this is dropped.
struct Opening<'a> {
    breaker: &'a CircuitBreaker,
    period: u64,
    reason: Counts,
    now: Instant,
    time: Duration,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let (now, open) = (self.now.ticks(), self.breaker.clock.ticks_of(self.time));
        self.breaker
            .change(now, |machine| machine.open(self.period, self.reason, open, now));
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("metrics", &self.metrics())
            .finish_non_exhaustive()
    }
}
