//! The breaker itself: one word that says whether to admit, a window beside it, and a machine behind a lock, which is
//! asked only while the circuit is not closed.
//!
//! The word is the period and the state. The lock holder of the machine writes it, and every call reads it. While it
//! says closed, an admission is one load, and the window records a result without a lock. A ticket carries the word of
//! its admission: a result whose word is no longer the current one is late, and decides nothing.
//!
//! | bits | breaker's word | ticket |
//! |---|---|---|
//! | 63..32 | period | the same |
//! | 31..4 | 0 | calls, saturating |
//! | 3 | 1 | 1 |
//! | 2..0 | state | the same |
//!
//! Neither is ever zero, so that an `Option` of a ticket is no larger than a ticket.

use super::builder::{BreakerBuilder, Classifier, Listener};
use super::count_window::CountWindow;
use super::event::{BreakerEvent, BreakerMetrics};
use super::history::Learnt;
use super::machine::{Answer, CircuitState, Machine, ProbeVerdict};
use super::open_time::{OpenTime, Trip};
use super::streak::Streak;
use super::thresholds::{Alarm, CallCounts, CallResult, Thresholds};
use super::window::Window;
use crate::rng::nth_fraction;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Weak;
use std::time::Duration;
use tollgate::status::{BreakerState, State};
use tollgate::sync::{Finally, both};
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{Clock, ClockReading, Demand, Description, Instant, Limiter, Outcome, Reason, Refusal, Ticket, Wait};

const LEG: &str = "breaker";
/// The open time if computing it panicked.
const UNCOMPUTED: Duration = Duration::from_secs(30);

/// Refuses work that is likely to fail, until probes say that it would succeed.
///
/// ```text
///            thresholds                 open time over, next call
///   Closed --------------> Open ------------------------------------> HalfOpen
///      ^                    ^                                          |    |
///      |                    '----- too many probes bad, or none back --'    |
///      '------------------------------ enough probes good ------------------'
/// ```
///
/// Closed, it evaluates the last calls, or those of a span of time, by the part that failed, by the part that was slow,
/// and by failures in a row. Open, it refuses with [`Reason::CircuitOpen`], and says for how long. Then it is half-open
/// and lets a number of probes through; once all have a result, they are judged by the same rates.
///
/// It learns from [`Permit::finish`](tollgate::Permit::finish): success, failure, overload. A dropped permit says nothing.
/// So the breaker is a leg of a policy like any limiter; put it in front of expensive legs.
///
/// # Probes
/// A probe is a permit of a half-open circuit. It comes back with its result. Without one (dropped, cancelled, its task
/// aborted or panicked, refused by a later leg) it is free again, so a half-open circuit cannot get stuck. It opens
/// again when no probe is left and the latest has been out for the [time-out of probes](BreakerBuilder::probe_timeout);
/// a policy that waits for a probe wakes then. Every change of state begins a new period, and a result of an older
/// period decides nothing.
///
/// An ask of several units is that many calls with one result. An ask of more calls than there are results to come
/// waits until no probe is out, and then takes all that are left.
///
/// # Fairness
/// The first call after the open time is the first probe. A [`Policy`](tollgate::Policy) does not wait for a circuit that
/// is not closed: it refuses at once with `CircuitOpen`, its waiters as well, unless the breaker is built to
/// [wait](BreakerBuilder::wait_while_open).
///
/// # Memory ordering
/// None is promised to callers: a breaker orders no work after other work.
///
/// The states are those of M. Nygard, *Release It!* (2007).
///
/// ```
/// # use tollgate::{Ask, LimiterExt, ManualClock, Outcome};
/// # use tollgate_resilience::{BreakerState, CircuitBreaker, OpenTime};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let breaker = CircuitBreaker::builder()
///     .count_window(10)
///     .minimum_calls(4)
///     .failure_rate(0.5)
///     .probes(1)
///     .open_for(OpenTime::fixed(Duration::from_secs(5)))
///     .on(&clock)
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
/// # Ok::<(), tollgate_resilience::BreakerError>(())
/// ```
pub struct CircuitBreaker {
    /// Written under the machine's lock.
    word: AtomicU64,
    refused: AtomicU64,
    config: Config,
    window: Window,
    streak: Streak,
    machine: Mutex<Machine>,
    clock: Clock,
    queue: WaitQueue,
}

/// The settings of the builder.
pub(super) struct Config {
    /// A policy waits until it admits.
    pub(super) waits: bool,
    /// Results need the time that work took.
    pub(super) times_calls: bool,
    /// Results are judged by rates alone, without a classifier.
    pub(super) is_plain: bool,
    pub(super) thresholds: Thresholds,
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

    /// A builder with the default settings.
    pub fn builder() -> BreakerBuilder {
        BreakerBuilder::new()
    }

    pub(super) fn of(config: Config, window: Window, probes: u64, overdue_after: u64, clock: Clock) -> Self {
        Self {
            word: AtomicU64::new(Word::new(CircuitState::Closed, 0).bits()),
            refused: AtomicU64::new(0),
            config,
            window,
            streak: Streak::new(),
            machine: Mutex::new(Machine::new(probes, overdue_after)),
            clock,
            queue: WaitQueue::new(LEG),
        }
    }

    #[inline]
    fn word(&self) -> Word {
        // Acquire: a thread that sees a period sees its empty window. Pairs with (P) in `publish`.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Publishes the machine's state. By the holder of its lock.
    fn publish(&self, machine: &Machine, now: u64) {
        let (state, period) = (machine.state(), machine.period());
        if state.records() {
            // No thread may record in the older period once the window begins anew.
            self.word
                .store(Word::new(CircuitState::Open, period).bits(), Ordering::Release);
            self.window.reset(period, now);
            self.streak.reset(period);
        }
        self.refused.store(0, Ordering::Relaxed);
        // (P) Release: the window is empty before a result is recorded in it. Pairs with `word`.
        self.word.store(Word::new(state, period).bits(), Ordering::Release);
    }

    /// Changes the machine. If that changed its state, tells waiters and the listener, after the lock.
    fn change<R>(&self, now: u64, change: impl FnOnce(&mut Machine) -> R) -> R {
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

    /// Wakers and the listener are user code. Each is called even if another panics, and during a panic as well.
    fn tell(&self, event: BreakerEvent) {
        let listen = || {
            if let Some(listener) = &self.config.listener {
                listener(event);
            }
        };
        both(|| self.queue.changed(), listen);
    }

    fn event(&self, from: CircuitState, machine: &Machine, now: u64) -> BreakerEvent {
        let open = machine.state() == CircuitState::Open;
        let judged = match from {
            _ if open => machine.counts(),
            CircuitState::HalfOpen => machine.probe_results(),
            _ => CallCounts::default(),
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

    /// Asks the machine, when the circuit is not closed.
    #[cold]
    fn ask_slow(&self, demand: &Demand<'_>) -> Result<BreakerTicket, Refusal> {
        let (units, now) = (demand.units(), demand.now(&self.clock));
        let judge = |units, ahead| self.admits(self.answer(units, ahead, now).without_limit(), now);
        self.queue.check(demand, judge).map_err(|refusal| self.count(refusal))?;
        loop {
            let ticks = now.ticks();
            let asked = Cell::new(None);
            // The first probe changes the state. If a listener panics at that, the probe comes back.
            let back = Finally::new(|| {
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
            match (answer, self.admits(answer.without_limit(), now)) {
                (Answer::Overdue, _) => self.open(word.period(), counts, now),
                (_, Ok(())) => return Ok(BreakerTicket::new(word, units, ticks)),
                (_, Err(refusal)) => return Err(self.count(refusal)),
            }
        }
    }

    /// The answer to `units` calls behind `ahead` others. Changes nothing.
    fn answer(&self, units: u64, ahead: u64, now: Instant) -> Answer {
        match self.word().state().admits() {
            true => Answer::Goes,
            false => self.machine.lock().answer(units, ahead, now.ticks()),
        }
    }

    /// The refusal that `answer` is, if it is one. The next call that asks ends an overdue half-open period.
    fn admits(&self, answer: Answer, now: Instant) -> Result<(), Refusal> {
        let wait = match answer {
            Answer::Goes | Answer::Overdue => return Ok(()),
            Answer::OnEvent => Wait::EVENT,
            Answer::Until(at) | Answer::OnProbe(at) => Wait::until(&self.clock, now, Instant::from_ticks(at)),
        };
        let refusal = Refusal::new(Reason::CircuitOpen, LEG, wait);
        match self.config.waits {
            true => Err(refusal),
            false => Err(refusal.at_once()),
        }
    }

    fn count(&self, refusal: Refusal) -> Refusal {
        // Relaxed: a statistic.
        self.refused.fetch_add(1, Ordering::Relaxed);
        refusal
    }

    /// Classifies the outcome of work that began at `started`; `None` if it says nothing.
    fn classify(&self, outcome: Outcome, started: u64, reading: &ClockReading) -> Option<CallResult> {
        let outcome = match &self.config.classifier {
            None => outcome,
            Some(classify) => {
                let from = Instant::from_ticks(started);
                answer(|| classify(outcome, self.clock.between(from, reading.now(&self.clock))))?
            }
        };
        let failed = match outcome {
            Outcome::Success => false,
            Outcome::Failure | Outcome::Overload => true,
            _ => return None,
        };
        let slow = self.is_slow(started, reading);
        Some(CallResult { failed, slow })
    }

    /// The window of the last calls, if the one call of `ticket` needs nothing else.
    #[inline(always)]
    fn simple_window(&self, ticket: BreakerTicket) -> Option<&CountWindow> {
        match &self.window {
            Window::Count(window)
                if self.config.is_plain & !self.config.times_calls
                    && ticket.units() == 1
                    && ticket.word().state() == CircuitState::Closed =>
            {
                Some(window)
            }
            _ => None,
        }
    }

    /// Records the result of one call of a closed circuit, where only the last calls and failures matter.
    #[inline(always)]
    fn record_simple(&self, window: &CountWindow, word: Word, failed: bool) {
        let (period, result) = (word.period(), CallResult { failed, slow: false });
        if window.record_one(period, result, &self.config.alarm) {
            self.evaluate(period, false, &ClockReading::default());
        }
    }

    /// Records the result of work whose ticket has the current word.
    #[inline(never)]
    fn finish_slow(&self, ticket: BreakerTicket, outcome: Outcome) {
        if outcome == Outcome::Forgotten {
            return;
        }
        let (word, reading) = (ticket.word(), &ClockReading::default());
        match &self.window {
            Window::Time(window)
                if self.config.is_plain && word.state() == CircuitState::Closed && is_result(outcome) =>
            {
                let failed = outcome != Outcome::Success;
                let slow = self.is_slow(ticket.started, reading);
                let (period, now) = (word.period(), reading.now(&self.clock).ticks());
                if window.record(CallResult { failed, slow }, ticket.units(), now, || self.is_in(period)) {
                    self.evaluate(period, false, reading);
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

    /// True if `period` is not over. Call it after the word was found to be the current one.
    #[inline]
    fn is_in(&self, period: u64) -> bool {
        // Relaxed: an acquiring load comes before it, and makes the end of a period visible.
        Word::from_bits(self.word.load(Ordering::Relaxed)).period() == period
    }

    #[inline(never)]
    fn record(&self, ticket: BreakerTicket, outcome: Outcome, reading: &ClockReading) {
        let word = ticket.word();
        if word.state() == CircuitState::Disabled {
            return;
        }
        // A classifier that panics has said nothing.
        let back = Finally::new(|| self.give_back(ticket));
        let result = self.classify(outcome, ticket.started, reading);
        back.forget();
        match result {
            Some(result) => self.record_result(word, result, ticket.units(), reading),
            None => self.give_back(ticket),
        }
    }

    #[inline(never)]
    fn record_result(&self, word: Word, result: CallResult, units: u64, reading: &ClockReading) {
        let (state, period) = (word.state(), word.period());
        if state.records() {
            self.record_call(state, period, result, units, reading);
        } else if state != CircuitState::Disabled {
            self.record_probe(period, result, units, reading);
        }
    }

    fn record_call(&self, state: CircuitState, period: u64, result: CallResult, units: u64, reading: &ClockReading) {
        let now = match self.window.is_timed() {
            true => reading.now(&self.clock).ticks(),
            false => 0,
        };
        let alarm = &self.config.alarm;
        let look = self
            .window
            .record(period, result, units, now, alarm, || self.is_in(period));
        if let Some(learnt) = &self.config.learnt {
            learnt.record(result, units, &self.config.thresholds);
        }
        let too_many = self
            .config
            .consecutive
            .is_some_and(|most| self.streak.record(period, result.failed, units) >= most);
        if (look || too_many) && state == CircuitState::Closed {
            self.evaluate(period, too_many, reading);
        }
    }

    #[cold]
    fn evaluate(&self, period: u64, always: bool, reading: &ClockReading) {
        // SeqCst: this thread's records come before the fence, its readings after it. Consider a result that makes the
        // window large enough and one that makes it bad enough: the last to pass its fence sees both.
        fence(Ordering::SeqCst);
        let now = match self.window.is_timed() {
            true => reading.now(&self.clock).ticks(),
            false => 0,
        };
        let trips = |counts: CallCounts| always || self.thresholds_for(counts.calls).are_reached_by(counts);
        if !trips(self.window.counts(period, now)) {
            return;
        }
        let counts = self.window.recount(period, now);
        if trips(counts) {
            self.open(period, counts, reading.now(&self.clock));
        }
    }

    /// Closed, with nothing learnt and no failed or slow call in its window: successes do not count.
    fn is_as_new(&self) -> bool {
        let word = self.word();
        let bad = |counts: CallCounts| counts.failed > 0 || counts.slow > 0;
        word.state() == CircuitState::Closed
            && !self.has_learnt()
            && !self.streak.is_running()
            && !bad(self.window.recount(word.period(), self.clock.now().ticks()))
    }

    /// True if history has changed the thresholds.
    fn has_learnt(&self) -> bool {
        self.config.learnt.as_ref().is_some_and(Learnt::has_any)
    }

    /// The thresholds for `calls` results.
    fn thresholds_for(&self, calls: u64) -> Thresholds {
        let thresholds = self.config.thresholds;
        match &self.config.learnt {
            Some(learnt) => learnt.adapt(thresholds, calls),
            None => thresholds,
        }
    }

    #[cold]
    fn record_probe(&self, period: u64, result: CallResult, units: u64, reading: &ClockReading) {
        let now = reading.now(&self.clock);
        let (verdict, results) = self.change(now.ticks(), |machine| {
            let thresholds = self.thresholds_for(machine.probe_count());
            let verdict = machine.record_probe(period, result, units, &thresholds);
            let results = machine.counts();
            if verdict == ProbeVerdict::Healthy {
                machine.go(CircuitState::Closed);
            }
            (verdict, results)
        });
        if verdict == ProbeVerdict::Sick {
            self.open(period, results, now);
        }
    }

    /// Returns a probe without a result.
    #[inline]
    fn give_back(&self, ticket: BreakerTicket) {
        if ticket.word().state() == CircuitState::HalfOpen {
            self.give_back_slow(ticket);
        }
    }

    #[cold]
    fn give_back_slow(&self, ticket: BreakerTicket) {
        let free = self.machine.lock().give_back(ticket.word().period(), ticket.units());
        if free {
            self.queue.notify();
        }
    }

    /// Opens, unless `period` is over. User code may compute the open time: it runs outside the lock, and if it panics
    /// the circuit opens all the same.
    fn open(&self, period: u64, reason: CallCounts, now: Instant) {
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
        if let Some(time) = answer(|| open_time.after(trip, nth_fraction(self.config.seed, period))) {
            opening.time = time;
        }
    }
}

/// The answer of users' code; `None` when it panics while another panic is under way: one more that got out would abort the process.
fn answer<R>(foreign: impl FnOnce() -> R) -> Option<R> {
    let mut said = None;
    both(|| said = Some(foreign()), || ());
    said
}

/// True for an outcome that says something about the resource.
#[inline(always)]
fn is_result(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Success | Outcome::Failure | Outcome::Overload)
}

/// A circuit that is about to open: dropping it opens the circuit.
struct Opening<'a> {
    breaker: &'a CircuitBreaker,
    period: u64,
    reason: CallCounts,
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

impl CircuitBreaker {
    /// The state. A snapshot: a circuit whose open time is over stays open until the next call.
    pub fn state(&self) -> BreakerState {
        self.word().state().into()
    }

    /// The metrics. A snapshot.
    pub fn metrics(&self) -> BreakerMetrics {
        let now = self.clock.now().ticks();
        let machine = self.machine.lock();
        let (state, period) = (machine.state(), machine.period());
        let counts = match state {
            _ if state.records() => self.window.recount(period, now),
            _ => machine.counts(),
        };
        let thresholds = match state {
            _ if state.records() => self.thresholds_for(counts.calls),
            _ => Thresholds {
                minimum: 1,
                ..self.thresholds_for(counts.calls)
            },
        };
        // Relaxed: a statistic.
        let refused = self.refused.load(Ordering::Relaxed);
        let metrics = BreakerMetrics::new(state, period, counts, refused, thresholds);
        match &self.config.learnt {
            Some(learnt) => metrics.with_usual(learnt.usual()),
            None => metrics,
        }
    }

    /// How long it is still open, rounded up to a nanosecond; zero when probes may go. `None` if it is not open, or
    /// forced open.
    pub fn retry_after(&self) -> Option<Duration> {
        let now = self.clock.now();
        let machine = self.machine.lock();
        (machine.state() == CircuitState::Open).then(|| self.clock.between(now, Instant::from_ticks(machine.until())))
    }

    /// Keeps the circuit open at least for `time`, as a `Retry-After` of the resource asks. If it opens before that is
    /// over, it stays open until then. Closing forgets it.
    pub fn hold_off(&self, time: Duration) {
        let now = self.clock.now();
        let until = self.clock.after(now, time).ticks();
        if self.change(now.ticks(), |machine| machine.hold_off(until)) {
            self.queue.changed();
        }
    }

    /// Opens now for `time`, whatever the window says.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock};
    /// # use tollgate_resilience::{BreakerState, CircuitBreaker};
    /// # use std::time::Duration;
    /// let breaker = CircuitBreaker::builder().on(&ManualClock::new()).build()?;
    /// breaker.trip(Duration::from_secs(7));
    /// assert_eq!(breaker.retry_after(), Some(Duration::from_secs(7)));
    /// breaker.hold_off(Duration::from_secs(60)); // The upstream asks for more.
    /// assert_eq!(breaker.retry_after(), Some(Duration::from_secs(60)));
    /// breaker.force_open();
    /// assert_eq!(breaker.state(), BreakerState::ForcedOpen);
    /// breaker.metrics_only();
    /// assert!(breaker.try_admit(1).is_ok());
    /// breaker.disable();
    /// breaker.reset();
    /// assert_eq!(breaker.state(), BreakerState::Closed);
    /// # Ok::<(), tollgate_resilience::BreakerError>(())
    /// ```
    pub fn trip(&self, time: Duration) {
        let now = self.clock.now().ticks();
        let open = self.clock.ticks_of(time);
        self.change(now, |machine| {
            let (period, counts) = (machine.period(), machine.counts());
            machine.open(period, counts, open, now)
        });
    }

    /// Refuses everything, until the state is changed by hand.
    pub fn force_open(&self) {
        self.go(CircuitState::ForcedOpen);
    }

    /// Admits everything and records nothing, until the state is changed by hand.
    pub fn disable(&self) {
        self.go(CircuitState::Disabled);
    }

    /// Admits everything and records it without ever opening, until the next call of `reset`, `trip`, `force_open` or
    /// `disable`: shows the effect of thresholds.
    pub fn metrics_only(&self) {
        self.go(CircuitState::MetricsOnly);
    }

    /// Closes with an empty window, from any state.
    pub fn reset(&self) {
        self.go(CircuitState::Closed);
    }

    fn go(&self, state: CircuitState) {
        let now = self.clock.now().ticks();
        self.change(now, |machine| machine.go(state));
    }
}

/// The period of an admission, the number of its calls, and when it began.
///
/// Two words, which a processor passes in registers. A third would go through memory, which costs more than the rest of
/// the breaker.
///
/// ```
/// # use tollgate::{Limiter, Ticket};
/// # use tollgate_resilience::{BreakerTicket, CircuitBreaker};
/// fn ticket_of<L: Limiter<Ticket = BreakerTicket>>(_: &L) -> usize {
///     BreakerTicket::WORDS
/// }
/// assert_eq!(ticket_of(&CircuitBreaker::new()), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerTicket {
    /// The breaker's word, with the number of calls in it.
    admitted: Admitted,
    /// In ticks; zero if no setting needs it.
    started: u64,
}

impl BreakerTicket {
    #[inline(always)]
    fn new(word: Word, units: u64, started: u64) -> Self {
        let admitted = word.admit(units);
        Self { admitted, started }
    }

    #[inline(always)]
    fn word(self) -> Word {
        self.admitted.word()
    }

    #[inline(always)]
    pub(crate) fn units(self) -> u64 {
        self.admitted.units()
    }
}

impl Ticket for BreakerTicket {
    const WORDS: usize = 2;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[..2].copy_from_slice(&[self.admitted.bits(), self.started]);
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self {
            admitted: Admitted::from_bits(words[0]),
            started: words[1],
        }
    }
}

impl Limiter for CircuitBreaker {
    type Ticket = BreakerTicket;

    // Always inlined, as is `finish`: the ticket then stays in registers. A copy is read wider than it was written,
    // which costs as much as the rest.
    #[inline(always)]
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<BreakerTicket, Refusal> {
        let word = self.word();
        if !word.state().admits() {
            return self.ask_slow(demand);
        }
        let started = match self.config.times_calls {
            true => demand.now(&self.clock).ticks(),
            false => 0,
        };
        Ok(BreakerTicket::new(word, demand.units(), started))
    }

    #[inline]
    fn cancel(&self, ticket: BreakerTicket) {
        self.give_back(ticket);
    }

    /// A forgotten probe stays out until it is overdue.
    #[inline(always)]
    fn finish(&self, ticket: BreakerTicket, outcome: Outcome) {
        if self.word() != ticket.word() {
            return;
        }
        match self.simple_window(ticket) {
            Some(window) if is_result(outcome) => {
                self.record_simple(window, ticket.word(), outcome != Outcome::Success);
            }
            _ => self.finish_slow(ticket, outcome),
        }
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let now = demand.now(&self.clock);
        let on_probe = Cell::new(false);
        let looked = self.queue.look(demand, |units, ahead| {
            let answer = self.answer(units, ahead, now);
            on_probe.set(matches!(answer, Answer::OnProbe(_)));
            self.admits(answer, now)
        });
        // The head looks again when the probes are overdue. But one may come back before, so no deadline is known to be missed.
        looked.map_err(|refusal| match on_probe.get() {
            true => refusal.with_wait(Wait::EVENT),
            false => refusal,
        })
    }

    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let (state, open_for) = (self.state(), self.retry_after());
        let breaker = Description::new(LEG).on(&self.clock).as_new(self.is_as_new());
        visit(breaker.state(State::Breaker { state, open_for }));
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

const STATE: u64 = 0b111;
const PRESENT: u64 = 1 << 3;
const UNITS_SHIFT: u32 = 4;
const PERIOD_SHIFT: u32 = 32;
const MAX_UNITS: u64 = (1 << (PERIOD_SHIFT - UNITS_SHIFT)) - 1;
const UNITS: u64 = MAX_UNITS << UNITS_SHIFT;

/// The state of a breaker and its period, of which 32 bits are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

impl Word {
    #[inline]
    fn new(state: CircuitState, period: u64) -> Self {
        Self(period << PERIOD_SHIFT | PRESENT | state as u64)
    }

    #[inline]
    fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    fn state(self) -> CircuitState {
        CircuitState::from_bits(self.0 & STATE)
    }

    #[inline]
    fn period(self) -> u64 {
        self.0 >> PERIOD_SHIFT
    }

    /// Makes the memory of `units` admitted calls, saturating: no window tells more apart.
    #[inline]
    fn admit(self, units: u64) -> Admitted {
        let bits = self.0 | units.min(MAX_UNITS) << UNITS_SHIFT;
        Admitted(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }
}

/// A word, and how many calls were admitted when it was current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Admitted(NonZeroU64);

impl Admitted {
    #[inline]
    fn word(self) -> Word {
        Word(self.0.get() & !UNITS)
    }

    #[inline]
    fn units(self) -> u64 {
        (self.0.get() & UNITS) >> UNITS_SHIFT
    }

    #[inline]
    fn bits(self) -> u64 {
        self.0.get()
    }

    /// The inverse of [`bits`](Self::bits).
    #[inline]
    fn from_bits(bits: u64) -> Self {
        Self(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_back_from_its_bits() {
        for (state, period) in [
            (CircuitState::Closed, 0),
            (CircuitState::HalfOpen, 7),
            (CircuitState::ForcedOpen, u32::MAX.into()),
        ] {
            let word = Word::new(state, period);
            assert_eq!((word.state(), word.period()), (state, period));
            for (units, kept) in [(0, 0), (1, 1), (MAX_UNITS, MAX_UNITS), (u64::MAX, MAX_UNITS)] {
                let admitted = word.admit(units);
                assert_eq!((admitted.word(), admitted.units()), (word, kept));
                assert_eq!(Admitted::from_bits(admitted.bits()), admitted);
                assert_eq!(Word::from_bits(word.bits()), word);
            }
        }
    }
}
