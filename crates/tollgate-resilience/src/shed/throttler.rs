//! A client that drops its own requests.

use super::drop_probability::throttle_probability;
use super::error::{ShedError, within};
use crate::rng::Rng;
use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tollgate::status::State;
use tollgate::{Clock, Demand, Description, Instant, Limiter, Outcome, Reason, Refusal, Wait};

const LEG: &str = "throttler";
const SEGMENTS: usize = 10;

/// Drops requests at the client, with a probability that grows with the refusals of the server:
///
/// ```text
/// max(0, (asked - accepted / accept_rate) / (asked + 1)), at most `most`
/// ```
///
/// over a window of time. A request that ends as [`Outcome::Overload`] is not accepted, one that ends as success or
/// failure is, and an ignored one counts as not asked. A dropped request counts as asked. Some requests always go
/// through, so the throttler notices when the resource has recovered.
///
/// Which requests are dropped is random, from a seed. A [`Policy`](tollgate::Policy) that waits asks for a dropped request again
/// when it becomes the head of the queue, and then once in each tenth of the window.
///
/// Google, *Site Reliability Engineering*, chapter 21 (2016).
///
/// ```
/// # use tollgate_resilience::shed::Throttler;
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let throttler = Throttler::new(0.5, 0.9, Duration::from_secs(120))?.on(&clock).seed(7);
/// for _ in 0..1_000 {
///     if let Ok(permit) = throttler.try_admit(1) {
///         permit.finish(Outcome::Overload);
///     }
/// }
/// assert!(throttler.rate() > 0.89);
/// clock.advance(Duration::from_secs(132));
/// assert_eq!(throttler.rate(), 0.0);
/// # Ok::<(), tollgate_resilience::shed::ShedError>(())
/// ```
pub struct Throttler {
    accept_rate: f64,
    most: f64,
    length: Duration,
    /// The length of a segment, in ticks.
    segment: u64,
    state: Mutex<ThrottleState>,
    /// The places of policies whose heads were dropped, and the instants from which those policies may ask again.
    dropped: Mutex<BTreeMap<u64, Instant>>,
    clock: Clock,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) asked: u64,
    pub(super) accepted: u64,
}

pub(super) struct ThrottleState {
    segments: [Segment; SEGMENTS],
    draws: Rng,
}

impl ThrottleState {
    pub(super) fn new(draws: Rng) -> Self {
        Self {
            segments: [Segment::default(); SEGMENTS],
            draws,
        }
    }

    pub(super) fn segment(&mut self, number: u64) -> &mut Segment {
        let segment = &mut self.segments[(number % SEGMENTS as u64) as usize];
        if segment.number < number {
            *segment = Segment {
                number,
                ..Segment::default()
            };
        }
        segment
    }

    /// Asked and accepted, in the window that ends with segment `newest`.
    pub(super) fn totals(&self, newest: u64) -> (u64, u64) {
        let within = |segment: &&Segment| segment.number + SEGMENTS as u64 > newest;
        let totals = self.segments.iter().filter(within);
        // A cost is often the client's choice: the sums saturate, as each segment does.
        totals.fold((0_u64, 0_u64), |(asked, accepted), segment| {
            (
                asked.saturating_add(segment.asked),
                accepted.saturating_add(segment.accepted),
            )
        })
    }
}

impl Throttler {
    /// Allows `1 / accept_rate` (0.01 to 1) as many requests as are accepted, and drops at most `most` (0 to 0.99) of
    /// them. It counts over a window of `length`, on the real clock.
    ///
    /// # Errors
    /// [`ShedError`] when a number or the window is not within its bounds.
    pub fn new(accept_rate: f64, most: f64, length: Duration) -> Result<Self, ShedError> {
        if length.is_zero() || length > Duration::from_secs(365 * 86_400) {
            return Err(ShedError::Window { given: length });
        }
        let accept_rate = within("accept rate", accept_rate, 0.01, 1.0)?;
        let most = within("most", most, 0.0, 0.99)?;
        Ok(Self::build(accept_rate, most, length, &Clock::real(), Rng::new(0)))
    }

    fn build(accept_rate: f64, most: f64, length: Duration, clock: &Clock, draws: Rng) -> Self {
        Self {
            accept_rate,
            most,
            length,
            segment: clock.ticks_of(length).div_ceil(SEGMENTS as u64).max(1),
            state: Mutex::new(ThrottleState::new(draws)),
            dropped: Mutex::new(BTreeMap::new()),
            clock: clock.clone(),
        }
    }

    /// The same throttler on `clock`, with an empty window.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(
            self.accept_rate,
            self.most,
            self.length,
            clock,
            self.state.lock().draws.clone(),
        )
    }

    /// The same throttler with another seed, and an empty window.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self::build(self.accept_rate, self.most, self.length, &self.clock, Rng::new(seed))
    }

    /// The probability that the next request is dropped, 0 to 1.
    pub fn rate(&self) -> f64 {
        let number = self.number(self.clock.now());
        self.rate_of(&self.state.lock(), number)
    }

    /// Segments are numbered from 1, so that a written one is never taken for an empty one.
    fn number(&self, now: Instant) -> u64 {
        now.ticks() / self.segment + 1
    }

    fn rate_of(&self, state: &ThrottleState, number: u64) -> f64 {
        let (asked, accepted) = state.totals(number);
        throttle_probability(asked as f64, accepted as f64, self.accept_rate, self.most)
    }

    fn refusal(&self, now: Instant, until: Instant) -> Refusal {
        Refusal::new(Reason::Saturated, LEG, Wait::until(&self.clock, now, until))
    }

    /// The refusal of a request that was dropped in segment `number`: until the next one.
    fn drops(&self, demand: &Demand<'_>, number: u64, now: Instant) -> Refusal {
        let until = Instant::from_ticks(number.saturating_mul(self.segment));
        if let Some(place) = demand.place() {
            let mut dropped = self.dropped.lock();
            dropped.retain(|_, until| *until > now);
            dropped.insert(place.id(), until);
        }
        self.refusal(now, until)
    }

    fn give_back(&self, number: u64, units: u64) {
        let mut state = self.state.lock();
        let segment = state.segment(number);
        if segment.number == number {
            segment.asked = segment.asked.saturating_sub(units);
        }
    }
}

impl Limiter for Throttler {
    /// The segment in which it was asked, and its units.
    type Ticket = (u64, u64);

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(u64, u64), Refusal> {
        let now = demand.now(&self.clock);
        let (number, units) = (self.number(now), demand.units());
        let (number, refused) = {
            let mut state = self.state.lock();
            let rate = self.rate_of(&state, number);
            let segment = state.segment(number);
            segment.asked = segment.asked.saturating_add(units);
            // A later one if the reading is a window old.
            let counted = segment.number;
            (counted, rate > 0.0 && state.draws.fraction() < rate)
        };
        match refused {
            false => Ok((number, units)),
            true => Err(self.drops(demand, number, now)),
        }
    }

    /// A cancelled request was not asked.
    fn cancel(&self, (number, units): (u64, u64)) {
        self.give_back(number, units);
    }

    fn finish(&self, (number, units): (u64, u64), outcome: Outcome) {
        match outcome {
            Outcome::Overload | Outcome::Forgotten => {}
            Outcome::Success | Outcome::Failure => {
                let mut state = self.state.lock();
                // In the segment of its request: an answer after the window counts as little as that.
                let segment = state.segment(number);
                if segment.number == number {
                    segment.accepted = segment.accepted.saturating_add(units);
                }
            }
            _ => self.give_back(number, units),
        }
    }

    /// A drop is not known before the request asks. A head that was dropped has to wait.
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let Some(place) = demand.place() else { return Ok(()) };
        let now = demand.now(&self.clock);
        let until = self.dropped.lock().get(&place.id()).copied();
        match until {
            Some(until) if now < until => Err(self.refusal(now, until)),
            _ => Ok(()),
        }
    }

    /// As new a window after the latest request. The state of the generator makes no difference.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let likelihood = self.rate();
        let number = self.number(self.clock.now());
        let as_new = self.state.lock().totals(number) == (0, 0);
        let throttler = Description::new(LEG).on(&self.clock).as_new(as_new);
        visit(throttler.state(State::Shed { likelihood }));
    }
}

impl fmt::Debug for Throttler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttler")
            .field("rate", &self.rate())
            .finish_non_exhaustive()
    }
}
