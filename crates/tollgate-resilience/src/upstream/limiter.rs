//! The limiter, its builder, and the handle of a call.

use super::feedback::Feedback;
use super::machine::{METERS, Machine, Mark, NEVER, Settings, Taken};
use crate::sync::Mutex;
use std::error::Error;
use std::fmt;
use std::sync::Weak;
use std::time::Duration;
use tollgate::status::State;
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{
    Ask, Clock, Demand, Description, Instant, Limiter, Outcome, Quota, Reason, Refusal, Settlement, Ticket, Wait,
};

const LEG: &str = "upstream";

/// Follows what an upstream says about its limits: one refusal of it pauses all callers, and what it has left of a quota is not exceeded.
///
/// Put it in front of the limits of your own, in the [`Policy`](tollgate::Policy) by which all calls to that upstream are admitted. Each
/// call [begins](Self::begin) once it is admitted, and its response is [observed](Self::observe). The module `client` of the crate
/// `tollgate-http` does both for clients of HTTP.
///
/// # Pause and ramp
/// A refusal pauses all callers from the moment at which it is observed, for the time that the upstream asks for, at most the
/// [cap](UpstreamBuilder::cap). If it asks for none, the first pause is [`pause`](UpstreamBuilder::pause), and each one that follows
/// without a success between is twice as long. A wait of zero (`Retry-After: 0`, or a date in the past) is obeyed once. Further waits of
/// zero without a success between count as refusals that name no wait. Refusals of calls that began before the pause belong to it: they can make it longer, and
/// the next pause is twice as long only once. Afterwards waiters are admitted in the order of their queue, at a rate that grows from zero to the
/// [rate](UpstreamBuilder::rate) during the [ramp](UpstreamBuilder::ramp). So the first second carries at most the rate, whatever burst
/// the other limits have saved. After the ramp those other limits decide, and a burst that they have saved goes out: keep it small. If
/// refusals are all that the upstream says, make an [`Adaptive`](crate::adaptive::Adaptive) rate one of them: it finds the quota, and the
/// pauses become rare. Its ceiling is the most that you want to send, since it rises until it is refused.
///
/// # Remaining quotas
/// A response names what was left of a quota when it was made. Calls in flight may not have been counted then, so at least what is
/// left after all of them may be taken, and at most what was named. What was known before is cut to that range: it falls at once,
/// and it rises with care. When a window ends, a full quota is assumed, less what is in flight, until a response says more.
/// A call that costs more than the limit that the upstream states is `Oversized`. If it states none, such a call goes out when the quota is
/// as full as it has been seen, and the upstream decides.
///
/// # Giving back
/// A cancelled reservation, and a settlement to less, give their units back to a window that has not ended since. To a quota that fills
/// steadily they give back what it has not filled in since then: it could have been full without them.
///
/// # Fairness
/// That of the policy. Policies that share one upstream take what it has left in the order of the ages of their heads: see
/// [`WaitQueue`].
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tollgate_resilience::upstream::{Feedback, Upstream};
/// # use tollgate::{Ask, LimiterExt, ManualClock, Outcome, Policy, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let rate = Quota::per_second(10);
/// let upstream = Arc::new(Upstream::builder().rate(rate).on(&clock).build()?);
/// let policy = Policy::new(Arc::clone(&upstream).and(TokenBucket::new(rate).on(&clock)));
/// clock.run(async {
///     let permit = policy.admit(1).await.unwrap();
///     let call = upstream.begin(&Ask::one()).unwrap();
///     // The response is a 429 with `Retry-After: 30`.
///     upstream.observe(&call, &Feedback::throttled(Some(Duration::from_secs(30))));
///     permit.finish(Outcome::Overload);
///
///     let refused = policy.try_admit(1).unwrap_err();
///     assert_eq!((refused.leg(), refused.retry_after()), ("upstream", Some(Duration::from_secs(30))));
///     let _next = policy.admit(1).await.unwrap();
///     assert_eq!(clock.elapsed(), Duration::from_secs(30));
/// });
/// # Ok::<(), tollgate_resilience::upstream::UpstreamError>(())
/// ```
pub struct Upstream {
    machine: Mutex<Machine>,
    clock: Clock,
    queue: WaitQueue,
}

/// The settings of an [`Upstream`].
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::Quota;
/// # use tollgate_resilience::upstream::Upstream;
/// let upstream = Upstream::builder()
///     .rate(Quota::per_minute(600))
///     .ramp(Duration::from_secs(5))
///     .pause(Duration::from_millis(500))
///     .cap(Duration::from_secs(300))
///     .build()?;
/// assert_eq!(upstream.paused_for(), None);
/// assert!(Upstream::builder().rate(Quota::zero()).build().is_err());
/// # Ok::<(), tollgate_resilience::upstream::UpstreamError>(())
/// ```
#[derive(Clone, Debug)]
pub struct UpstreamBuilder {
    rate: Option<Quota>,
    ramp: Duration,
    pause: Duration,
    cap: Duration,
    clock: Clock,
}

/// Why settings make no [`Upstream`].
///
/// ```
/// # use tollgate::Quota;
/// # use tollgate_resilience::upstream::{Upstream, UpstreamError};
/// let error = Upstream::builder().rate(Quota::unlimited()).build().unwrap_err();
/// assert_eq!(error, UpstreamError::Rate { given: Quota::unlimited() });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The rate that a ramp leads to must be neither zero nor unlimited.
    Rate {
        /// The given rate.
        given: Quota,
    },
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { given } => write!(
                f,
                "a ramp cannot lead to the rate `{given}`: it must be a number per time"
            ),
        }
    }
}

impl Error for UpstreamError {}

impl UpstreamBuilder {
    /// Sets the rate that the ramp after a pause leads to: that of the limits behind it. By default it is the most that were admitted in
    /// one of the two seconds before the pause.
    pub fn rate(mut self, rate: Quota) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the length of the ramp after a pause; 2 s by default. During it half of what the rate allows is admitted. Zero is no ramp.
    pub fn ramp(mut self, ramp: Duration) -> Self {
        self.ramp = ramp;
        self
    }

    /// Sets the first pause where the upstream names none; 1 s by default.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets the longest pause, and the longest time until a quota is assumed to be full again; 1 h by default.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Sets the clock; the real one by default.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Makes it.
    ///
    /// # Errors
    /// [`UpstreamError::Rate`] for a rate that is zero or unlimited.
    pub fn build(self) -> Result<Upstream, UpstreamError> {
        let ticks = |time| self.clock.ticks_of(time).max(1);
        if let Some(given) = self.rate.filter(|rate| rate.is_zero() || rate.is_unlimited()) {
            return Err(UpstreamError::Rate { given });
        }
        let settings = Settings {
            second: ticks(Duration::from_secs(1)),
            rate: self.rate.map(|rate| (rate.count(), ticks(rate.period()))),
            ramp: self.clock.ticks_of(self.ramp),
            pause: ticks(self.pause),
            cap: ticks(self.cap),
        };
        Ok(Upstream {
            machine: Mutex::new(Machine::new(settings)),
            clock: self.clock,
            queue: WaitQueue::new(LEG),
        })
    }
}

/// A call that has begun, as it was admitted. [`Upstream::observe`] takes its response.
///
/// ```
/// # use tollgate_resilience::upstream::{Feedback, RemainingQuota, Upstream};
/// # use tollgate::{Ask, LimiterExt, ManualClock};
/// # use std::time::Duration;
/// let upstream = Upstream::builder().on(&ManualClock::new()).build()?;
/// let permit = upstream.try_admit(1).unwrap();
/// let call = upstream.begin(&Ask::one()).expect("it was admitted");
/// let last = RemainingQuota::of_calls(0).limit(10).reset(Duration::from_secs(60));
/// upstream.observe(&call, &Feedback::default().quota(last));
/// drop(permit);
/// assert_eq!(upstream.try_admit(1).unwrap_err().retry_after(), Some(Duration::from_secs(60)));
/// # Ok::<(), tollgate_resilience::upstream::UpstreamError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Call(Mark);

/// The counts of an [`Upstream`], ever.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate_resilience::upstream::Upstream;
/// let upstream = Upstream::new();
/// upstream.pause(Duration::from_secs(1));
/// assert_eq!(upstream.stats().pauses, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamStats {
    /// Pauses that have begun, or were made longer: up to [`refused`](Self::refused).
    pub pauses: u64,
    /// Responses that were refusals.
    pub refused: u64,
}

impl Upstream {
    /// One with the defaults that [`UpstreamBuilder`] lists, on the real clock.
    pub fn new() -> Self {
        Self::builder().build().expect("the defaults are within bounds")
    }

    /// A builder with the default settings.
    pub fn builder() -> UpstreamBuilder {
        UpstreamBuilder {
            rate: None,
            ramp: Duration::from_secs(2),
            pause: Duration::from_secs(1),
            cap: Duration::from_secs(3_600),
            clock: Clock::real(),
        }
    }

    /// Begins a call that was admitted with `ask`: call it right before the request is sent. `None` if the upstream has been paused since
    /// the admission. Drop the permit then, and ask for another. Within a [`Retry`](crate::retry::Retry) return an error that may be repeated
    /// [at once](crate::retry::Repeat::After); that counts as an attempt.
    pub fn begin(&self, ask: &Ask) -> Option<Call> {
        let now = self.clock.now().ticks();
        self.machine.lock().begin(ask, now).map(Call)
    }

    /// Takes what the response to `call` says: from then on a refusal pauses all callers.
    pub fn observe(&self, call: &Call, feedback: &Feedback) {
        let now = self.clock.now().ticks();
        let ticks = |time| self.clock.ticks_of(time);
        self.machine.lock().observe(&call.0, feedback, ticks, now);
        // A quota may have turned out to be larger.
        self.queue.notify();
    }

    /// Pauses all callers for `wait`, at most the cap. It never shortens a pause.
    pub fn pause(&self, wait: Duration) {
        let now = self.clock.now().ticks();
        self.machine.lock().pause(self.clock.ticks_of(wait), now);
        self.queue.changed();
    }

    /// Ends the pause and the ramp at once.
    pub fn resume(&self) {
        self.machine.lock().resume();
        self.queue.changed();
    }

    /// How much longer the pause lasts, if one is on.
    pub fn paused_for(&self) -> Option<Duration> {
        let now = self.clock.now();
        let until = self.machine.lock().paused_until(now.ticks())?;
        Some(self.clock.between(now, Instant::from_ticks(until)))
    }

    /// Would `demand` be admitted behind the waiters of its policy, and `others` more calls?
    fn judge(&self, demand: &Demand<'_>, others: u64, now: Instant) -> Result<(), Refusal> {
        let ready = {
            let mut machine = self.machine.lock();
            let units = machine.units(demand.ask());
            machine.ready(&units, demand, others, now.ticks())
        };
        match ready <= now.ticks() {
            true => Ok(()),
            false => Err(self.refusal(ready, now)),
        }
    }

    /// The refusal of a request that may go at `ready`.
    fn refusal(&self, ready: u64, now: Instant) -> Refusal {
        match ready {
            NEVER => Refusal::new(Reason::Oversized, LEG, Wait::Never),
            _ => {
                let wait = Wait::until(&self.clock, now, Instant::from_ticks(ready));
                Refusal::new(Reason::RateExceeded, LEG, wait)
            }
        }
    }

    /// Its counts.
    pub fn stats(&self) -> UpstreamStats {
        let machine = self.machine.lock();
        UpstreamStats {
            pauses: machine.epoch(),
            refused: machine.refused,
        }
    }
}

impl Default for Upstream {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("paused_for", &self.paused_for())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The memory of one admission by an [`Upstream`].
///
/// ```
/// # use tollgate_resilience::upstream::{Upstream, UpstreamTicket};
/// # use tollgate::{Limiter, Ticket};
/// fn words<L: Limiter<Ticket = UpstreamTicket>>() -> usize {
///     UpstreamTicket::WORDS
/// }
/// assert!(words::<Upstream>() <= 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTicket(Taken);

impl Ticket for UpstreamTicket {
    const WORDS: usize = METERS + 3;
    fn write(&self, words: &mut [u64]) {
        words[..METERS].copy_from_slice(&self.0.units);
        words[METERS] = self.0.epoch;
        words[METERS + 1] = self.0.serial;
        words[METERS + 2] = self.0.at;
    }
    fn read(words: &[u64]) -> Self {
        Self(Taken {
            units: std::array::from_fn(|meter| words[meter]),
            epoch: words[METERS],
            serial: words[METERS + 1],
            at: words[METERS + 2],
        })
    }
}

impl Limiter for Upstream {
    type Ticket = UpstreamTicket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<UpstreamTicket, Refusal> {
        let now = demand.now(&self.clock);
        self.queue.check(demand, |_, others| self.judge(demand, others, now))?;
        let ready = {
            let mut machine = self.machine.lock();
            let units = machine.units(demand.ask());
            let ready = machine.ready(&units, demand, 0, now.ticks());
            if ready <= now.ticks() {
                return Ok(UpstreamTicket(machine.take(units, now.ticks())));
            }
            ready
        };
        Err(self.refusal(ready, now))
    }

    fn cancel(&self, ticket: UpstreamTicket) {
        let now = self.clock.now().ticks();
        self.machine.lock().cancel(&ticket.0, now);
        self.queue.notify();
    }

    fn finish(&self, ticket: UpstreamTicket, _: Outcome) {
        self.machine.lock().finish(&ticket.0.units);
    }

    fn settle(&self, ticket: &mut UpstreamTicket, settlement: &Settlement) -> u32 {
        let cost = settlement.cost();
        let Some(units) = settlement.per(cost).actual() else {
            return 0;
        };
        let now = self.clock.now().ticks();
        let known = self.machine.lock().settle(&mut ticket.0, cost, units, now);
        self.queue.notify();
        known.into()
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let now = demand.now(&self.clock);
        self.queue.look(demand, |_, ahead| {
            self.judge(demand, ahead.saturating_sub(demand.ahead()), now)
        })
    }

    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }

    /// The pause, and then each quota that is known.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let now = self.clock.now();
        let mut quotas = Vec::new();
        let (until, as_new) = {
            let mut machine = self.machine.lock();
            machine.visit(now.ticks(), |quota| quotas.push(quota));
            let until = machine.paused_until(now.ticks()).unwrap_or(0);
            (until, machine.is_pristine(now.ticks()))
        };
        let wait = |until: u64| self.clock.between(now, Instant::from_ticks(until));
        let upstream = Description::new(LEG).on(&self.clock).as_new(as_new);
        visit(upstream.state(State::Opaque { next: wait(until) }));
        for quota in quotas {
            let fills_at = Instant::from_ticks(now.ticks().saturating_add(quota.fills_in));
            let state = State::Rate {
                limit: quota.full,
                window: self.clock.between(now, fills_at),
                available: quota.left,
                next: Some(wait(quota.next)),
                reset: None,
            };
            let upstream = upstream.state(state);
            visit(quota.cost.map_or(upstream, |cost| upstream.per(cost)));
        }
    }
}
