//! Reads the histories of a run and reports violations.
//!
//! A permit is *live* from the instant at which its holder received it until the holder gave it back, learnt its loss, was
//! killed, or passed the deadline that it knew of: whichever came first. While it is live the store must hold it, from the
//! grant on. So at the last grant the others were live, and all of them together were within the limit then:
//!
//! - Over the limit: of the permits that are live at one instant, take any one and those with smaller tokens. Their weights
//!   must not exceed the greatest limit that can have been in force when that one was granted.
//! - When it was granted: after its request, and after every smaller token; before its holder received it, and before the
//!   holder of any greater token did. Where nothing is left between the two, tokens do not grow.
//!
//! Permits of tenants have no tokens, and limits that stay: all that are live at one instant are within the limit.
//!
//! A stalled process cannot recover in time. Where a bound of time is checked, the measured stalls of the processes are added
//! to it, and nothing else is.

use super::history::{Ask, Event};
use super::instant::Nanos;
use super::spender::Meter;
use super::tenants::Leg;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

mod limits;
mod recovery;
mod spent;

use limits::Limits;
pub(crate) use recovery::Recovery;
pub(crate) use spent::{Allowed, check_in_use, check_spent};

/// The bars of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bars {
    /// The least life of a session without a renewal.
    pub(crate) ttl: Nanos,
    /// The longest life of it.
    pub(crate) life: Nanos,
    /// The greatest weight that is requested.
    pub(crate) heaviest: u64,
}

/// The permits that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Semaphore,
    /// The tenant with this number.
    Tenant {
        key: u32,
        permits_bind: bool,
    },
}

impl Of {
    fn key(self) -> u32 {
        match self {
            Self::Semaphore => 0,
            Self::Tenant { key, .. } => key,
        }
    }

    /// Its permits are all in use, all the time.
    fn binds(self) -> bool {
        match self {
            Self::Semaphore => true,
            Self::Tenant { permits_bind, .. } => permits_bind,
        }
    }
}

/// A violation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Too many permits were live at once.
    OverLimit {
        at: Nanos,
        live: u64,
        limit: u64,
        holders: Vec<Ask>,
    },
    /// Two grants have one token.
    TokenTwice { token: u64, asks: [Ask; 2] },
    /// A token is smaller than one whose holder received it before this one was requested.
    TokenBack { ask: Ask, token: u64 },
    /// A permit with another weight than requested.
    WrongWeight { ask: Ask, asked: u64, granted: u64 },
    /// A deadline later than a session that was renewed at the instant of the answer.
    LateDeadline { ask: Ask },
    /// Permits of departed processes were not back in time.
    SlowRecovery {
        gone: Nanos,
        took: Option<Nanos>,
        allowed: Nanos,
    },
    /// There was no grant in time after the store was back.
    StillDown {
        fault: String,
        healed: Nanos,
        took: Option<Nanos>,
        allowed: Nanos,
    },
    /// A rate or a window granted more in a span of time than is allowed.
    OverSpent {
        meter: Meter,
        from: Nanos,
        span: Nanos,
        count: u64,
        most: u64,
    },
    /// A rate or a window granted nothing in time.
    Dry {
        meter: Meter,
        since: Nanos,
        took: Option<Nanos>,
        allowed: Nanos,
    },
    /// More of a tenant's leg is in use than calls have taken; with no leg, of its permits.
    Charged {
        key: u32,
        leg: Option<Leg>,
        in_use: u64,
        most: u64,
    },
    /// A caller was never answered, and lives.
    Stuck { ask: Ask },
    /// A permit was neither given back nor lost, and its holder lives.
    Kept { ask: Ask },
    /// Keys were left in the store at the end.
    KeysLeft { keys: u64 },
    /// The keys that are left were not counted.
    KeysUnseen,
    /// The history itself is impossible: an answer without a request, or a second one.
    Impossible { ask: Ask, event: String },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A caller that has its permit later than this has waited for others, without a fault.
const WAITED: Nanos = 100_000_000;

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) asked: usize,
    pub(crate) granted: usize,
    pub(crate) cancelled: usize,
    pub(crate) cancelled_at_the_grant: usize,
    pub(crate) refused: usize,
    /// By leg, or by what was said.
    pub(crate) refusals: BTreeMap<String, usize>,
    pub(crate) lost: usize,
    pub(crate) returned: usize,
    /// Grants that took longer than [`WAITED`].
    pub(crate) waited: usize,
    /// The greatest weight that was live at once.
    pub(crate) most: u64,
    /// How long it took until permits of departed processes were back.
    pub(crate) recoveries: Vec<Recovery>,
    /// The grants of each rate and window.
    pub(crate) spent: Vec<(Meter, usize)>,
    /// Of the permits of each tenant.
    pub(crate) tenants: Vec<Report>,
    pub(crate) faults: Vec<Fault>,
}

/// A grant, and how long its holder considered it its own.
#[derive(Clone, Copy, Debug)]
struct Hold {
    ask: Ask,
    weight: u64,
    token: u64,
    received: Nanos,
    /// The last deadline that its holder knew.
    deadline: Nanos,
    end: Nanos,
    /// Between these instants it was granted.
    earliest: Nanos,
    latest: Nanos,
}

impl Hold {
    fn live_at(&self, at: Nanos) -> bool {
        self.received <= at && at < self.end
    }
}

/// Checks the events of all processes of a run, in any order of processes; those of one process in the order of its file.
pub(crate) fn check(events: &[Event], bars: Bars) -> Report {
    let mut report = check_permits(events, Of::Semaphore, bars);
    let mut left = events.iter().filter_map(|event| match event {
        Event::Left { keys } => Some(*keys),
        _ => None,
    });
    match left.next_back() {
        None => report.faults.push(Fault::KeysUnseen),
        Some(0) => {}
        Some(keys) => report.faults.push(Fault::KeysLeft { keys }),
    }
    report
}

/// Checks the permits of the semaphore, or of one tenant.
pub(crate) fn check_permits(events: &[Event], of: Of, bars: Bars) -> Report {
    let mut report = Report::default();
    let is_of = |event: &&Event| event.key().is_none_or(|key| key == of.key());
    let events: Vec<Event> = events.iter().filter(is_of).cloned().collect();
    let killed = killed(&events);
    let mut holds = holds(&events, &killed, bars, &mut report);
    if of == Of::Semaphore {
        holds = tokens(holds, &mut report.faults);
    } else {
        holds.sort_by_key(|hold| hold.received);
        (1..).zip(&mut holds).for_each(|(token, hold)| hold.token = token);
    }
    over_limit(&holds, &Limits::of(&events), &mut report);
    recovery::check(&events, &holds, of, bars, &mut report);
    report
}

fn killed(events: &[Event]) -> HashMap<u32, Nanos> {
    let mut killed = HashMap::new();
    for event in events {
        if let Event::Killed { processes, at } = event {
            killed.extend(processes.iter().map(|&process| (process, *at)));
        }
    }
    killed
}

/// The life of every ask, from its own events.
fn holds(events: &[Event], killed: &HashMap<u32, Nanos>, bars: Bars, report: &mut Report) -> Vec<Hold> {
    let mut waiting: BTreeMap<Ask, u64> = BTreeMap::new();
    let mut held: BTreeMap<Ask, Hold> = BTreeMap::new();
    let mut over = Vec::new();
    for event in events {
        let impossible = |ask: &Ask| Fault::Impossible {
            ask: *ask,
            event: format!("{event:?}"),
        };
        match event {
            Event::Asked { ask, weight, .. } => {
                report.asked += 1;
                if waiting.insert(*ask, *weight).is_some() || held.contains_key(ask) {
                    report.faults.push(impossible(ask));
                }
            }
            Event::Granted {
                ask,
                weight,
                token,
                sent,
                received,
                deadline,
                ..
            } => {
                report.granted += 1;
                report.waited += usize::from(*received > sent + WAITED);
                match waiting.remove(ask) {
                    None => report.faults.push(impossible(ask)),
                    Some(asked) if asked != *weight => report.faults.push(Fault::WrongWeight {
                        ask: *ask,
                        asked,
                        granted: *weight,
                    }),
                    Some(_) => {}
                }
                if *deadline > received + bars.ttl {
                    report.faults.push(Fault::LateDeadline { ask: *ask });
                }
                held.insert(
                    *ask,
                    Hold {
                        ask: *ask,
                        weight: *weight,
                        token: *token,
                        received: *received,
                        deadline: *deadline,
                        end: *deadline,
                        earliest: *sent,
                        latest: *received,
                    },
                );
            }
            Event::Held { ask, deadline } => match held.get_mut(ask) {
                Some(hold) => hold.deadline = *deadline,
                None => report.faults.push(impossible(ask)),
            },
            Event::Released { ask, at, deadline } | Event::Lost { ask, at, deadline } => {
                let lost = usize::from(matches!(event, Event::Lost { .. }));
                report.lost += lost;
                report.returned += 1 - lost;
                match held.remove(ask) {
                    Some(mut hold) => {
                        hold.deadline = hold.deadline.max(*deadline);
                        hold.end = hold.deadline.min(*at);
                        over.push(hold);
                    }
                    None => report.faults.push(impossible(ask)),
                }
            }
            Event::Refused { ask, .. } | Event::Cancelled { ask, .. } => {
                if let Event::Refused { why, .. } = event {
                    *report.refusals.entry(why.clone()).or_default() += 1;
                }
                let cancelled = matches!(event, Event::Cancelled { .. });
                let at_the_grant = matches!(event, Event::Cancelled { at_the_grant: true, .. });
                report.cancelled_at_the_grant += usize::from(at_the_grant);
                report.cancelled += usize::from(cancelled);
                report.refused += usize::from(!cancelled);
                if waiting.remove(ask).is_none() {
                    report.faults.push(impossible(ask));
                }
            }
            _ => {}
        }
    }
    for ask in waiting.into_keys().filter(|ask| !killed.contains_key(&ask.process)) {
        report.faults.push(Fault::Stuck { ask });
    }
    for (ask, mut hold) in held {
        match killed.get(&ask.process) {
            Some(&at) => hold.end = hold.deadline.min(at),
            None => report.faults.push(Fault::Kept { ask }),
        }
        over.push(hold);
    }
    over
}

/// The grants in the order of their tokens, each with the instants between which it was made.
fn tokens(mut holds: Vec<Hold>, faults: &mut Vec<Fault>) -> Vec<Hold> {
    holds.sort_by_key(|hold| (hold.token, hold.received));
    for pair in holds.windows(2).filter(|pair| pair[0].token == pair[1].token) {
        faults.push(Fault::TokenTwice {
            token: pair[0].token,
            asks: [pair[0].ask, pair[1].ask],
        });
    }
    let mut earliest = 0;
    for hold in &mut holds {
        if earliest > hold.latest {
            faults.push(Fault::TokenBack {
                ask: hold.ask,
                token: hold.token,
            });
        }
        earliest = earliest.max(hold.earliest);
        hold.earliest = earliest;
    }
    let mut latest = Nanos::MAX;
    for hold in holds.iter_mut().rev() {
        latest = latest.min(hold.latest);
        hold.latest = latest;
    }
    holds
}

fn over_limit(holds: &[Hold], limits: &Limits, report: &mut Report) {
    let mut starts: Vec<&Hold> = holds.iter().collect();
    starts.sort_by_key(|hold| hold.received);
    // Those that are live, by token.
    let mut live: BTreeSet<(u64, usize)> = BTreeSet::new();
    let place: HashMap<Ask, usize> = holds
        .iter()
        .enumerate()
        .map(|(place, hold)| (hold.ask, place))
        .collect();
    for start in starts {
        let at = start.received;
        live.retain(|&(_, place)| holds[place].live_at(at));
        if !start.live_at(at) {
            continue; // It heard of it after its deadline: it never held it.
        }
        live.insert((start.token, place[&start.ask]));
        let mut sum = 0;
        for (nth, &(token, place)) in live.iter().enumerate() {
            let hold = &holds[place];
            sum += hold.weight;
            let limit = limits.greatest(hold.earliest, hold.latest);
            if token >= start.token && sum > limit {
                report.faults.push(Fault::OverLimit {
                    at,
                    live: sum,
                    limit,
                    holders: live.iter().take(nth + 1).map(|&(_, place)| holds[place].ask).collect(),
                });
                break;
            }
        }
        report.most = report
            .most
            .max(live.iter().map(|&(_, place)| holds[place].weight).sum());
    }
}
