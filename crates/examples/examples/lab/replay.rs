//! A policy against a trace, in virtual time: every request is a future that is admitted, works, settles and ends.

use super::error::LabError;
use super::page::series::Event;
use super::trace::{Request, Trace};
use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use std::pin::pin;
use std::time::Duration;
use tollgate::{Ask, Cost, Instant, MAX_COSTS, ManualClock, Outcome, Reason};
use tollgate_config::{PolicySpec, ReloadablePolicy};

/// What came of a trace under a policy, one event per request, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    pub events: Vec<Event>,
    /// Why, of those that were refused.
    pub reasons: Vec<Option<Reason>>,
    /// What each leg in shadow mode would have refused.
    pub shadows: Vec<(String, u64)>,
}

/// The time after the last arrival at which a waiter is given up: no event will come for it any more.
const GIVEN_UP: Duration = Duration::from_secs(30 * 86_400);
/// The leg name of those.
pub const NEVER: &str = "(waits for ever)";

/// The costs of a trace that a policy counts.
struct Costs(Vec<(Cost, usize)>);

impl Costs {
    fn of(spec: &PolicySpec, trace: &Trace) -> Result<Self, LabError> {
        let mut counted: Vec<(Cost, usize)> = Vec::new();
        for leg in &spec.legs {
            let Some(name) = &leg.per else { continue };
            let Some(column) = trace.costs.iter().position(|cost| cost == name) else {
                let there = trace.costs.join(", ");
                let what = format!(
                    "the leg `{}` counts `{name}`, and requests of {} cost: {there}",
                    leg.name, trace.name
                );
                return Err(LabError::new(what));
            };
            if counted.iter().all(|&(_, known)| known != column) {
                counted.push((Cost::interned(name), column));
            }
        }
        if counted.len() > MAX_COSTS {
            let what = format!(
                "the policy counts {} costs, and a request names at most {MAX_COSTS}",
                counted.len()
            );
            return Err(LabError::new(what));
        }
        Ok(Self(counted))
    }

    fn ask(&self, request: &Request) -> Ask {
        let named = self.0.iter();
        named.fold(Ask::many(request.calls), |ask, &(cost, column)| {
            ask.cost(cost, request.units[column][0])
        })
    }
}

/// A trace made ready for a policy, to be replayed as often as one likes under other numbers.
pub struct Bench<'a> {
    trace: &'a Trace,
    costs: Costs,
}

impl<'a> Bench<'a> {
    pub fn new(spec: &PolicySpec, trace: &'a Trace) -> Result<Self, LabError> {
        let costs = Costs::of(spec, trace)?;
        Ok(Self { trace, costs })
    }

    /// Runs the trace to its end.
    pub fn run(&self, spec: &PolicySpec) -> Result<Replay, LabError> {
        match self.run_until(spec, usize::MAX)? {
            Some(replay) => Ok(replay),
            None => unreachable!("no trace has that many refusals"),
        }
    }

    /// Runs the trace, and gives up once more than `most` have been refused.
    pub fn run_until(&self, spec: &PolicySpec, most: usize) -> Result<Option<Replay>, LabError> {
        let clock = ManualClock::new();
        let policy = spec.build(&clock).map_err(|error| LabError::new(error.to_string()))?;
        let requests = &self.trace.requests;
        let last = requests.last().map_or(0, |last| last.at);
        let mut events: Vec<Option<(Event, Option<Reason>)>> = vec![None; requests.len()];
        let whole = clock.run(async {
            let all = requests.iter().enumerate();
            let mut open: FuturesUnordered<_> = all
                .map(|(index, request)| self.one(&policy, &clock, index, request))
                .collect();
            let mut refused = 0;
            let end = clock.after(Instant::ZERO, Duration::from_nanos(last) + GIVEN_UP);
            let mut end = pin!(clock.sleep_until(end));
            while let Either::Left((Some((index, event, reason)), _)) = select(open.next(), end.as_mut()).await {
                refused += usize::from(reason.is_some());
                events[index] = Some((event, reason));
                if refused > most {
                    return false;
                }
            }
            true
        });
        if !whole {
            return Ok(None);
        }
        let given_up = |request: &Request| {
            let event = Event {
                arrived: request.at,
                ended: last.max(request.at),
                refused_by: Some(NEVER.into()),
                units: request.units.clone(),
                ..Event::default()
            };
            (event, Some(Reason::TimedOut))
        };
        let events = events.into_iter().zip(requests);
        let (events, reasons) = events
            .map(|(event, request)| event.unwrap_or_else(|| given_up(request)))
            .unzip();
        let legs = policy.limiter().legs();
        let shadows = legs
            .iter()
            .filter_map(|leg| Some((leg.name.clone(), leg.shadow?.refused)));
        Ok(Some(Replay {
            events,
            reasons,
            shadows: shadows.collect(),
        }))
    }

    /// One request, from its arrival to its end.
    async fn one(
        &self,
        policy: &ReloadablePolicy,
        clock: &ManualClock,
        index: usize,
        request: &Request,
    ) -> (usize, Event, Option<Reason>) {
        let nanos = || clock.elapsed().as_nanos() as u64;
        clock
            .sleep_until(clock.after(Instant::ZERO, Duration::from_nanos(request.at)))
            .await;
        let mut event = Event {
            arrived: request.at,
            units: request.units.clone(),
            ..Event::default()
        };
        let mut permit = match policy.admit(self.costs.ask(request)).await {
            Ok(permit) => permit,
            Err(refusal) => {
                event.ended = nanos();
                event.refused_by = Some(refusal.leg().into());
                return (index, event, Some(refusal.reason()));
            }
        };
        event.ended = nanos();
        clock.sleep(Duration::from_nanos(request.hold)).await;
        for &(cost, column) in &self.costs.0 {
            let [charged, used] = request.units[column];
            if used != charged {
                // A cost that a semaphore alone counts is held, and not corrected.
                let _ = permit.settle(cost, used);
            }
        }
        event.finished = Some(nanos());
        permit.finish(if request.failed {
            Outcome::Failure
        } else {
            Outcome::Success
        });
        (index, event, None)
    }
}
