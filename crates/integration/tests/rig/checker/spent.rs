//! The grants of rates and windows, with their times.
//!
//! A grant was made between the instants of its request and of its answer. So requests that were sent and answered within a
//! span of time were granted within that span, and are at most as many as it allows. A process may hold one from before, for a
//! request that was refused in the end: the next request gets it. A tenant's are given back then. Of its tokens those count that a call
//! has kept in the end.
//!
//! After all calls have ended, no more of a tenant's units are in use than grants have taken and time has not given back.

use super::recovery::stalled;
use super::{Fault, Report};
use crate::rig::history::Event;
use crate::rig::instant::{Nanos, nanos};
use crate::rig::spender::{Bound, Meter};
use crate::rig::tenants::{LEGS, Leg, MOST_TOKENS, PERMITS_LEG};
use std::collections::BTreeSet;

/// What is allowed beside the quota and the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// The longest time without a grant.
    pub(crate) dry: Nanos,
    /// The store loses its data when it is killed.
    pub(crate) forgets: bool,
}

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gift {
    process: u32,
    units: u64,
    sent: Nanos,
    received: Nanos,
}

const SECOND: Nanos = 1_000_000_000;
/// Clocks of processes and servers drift apart by 1 %.
const APART: Nanos = 100;

/// Finds violations of the quota and the limit, and times without a grant, of these meters.
pub(crate) fn check_spent(events: &[Event], meters: &[Meter], allowed: Allowed, report: &mut Report) {
    for &meter in meters {
        let mut gifts: Vec<Gift> = events.iter().filter_map(|event| gift(event, meter)).collect();
        gifts.sort_by_key(|gift| gift.received);
        report.spent.push((meter, gifts.len()));
        let processes: BTreeSet<u32> = gifts.iter().map(|gift| gift.process).collect();
        let kept = match meter {
            Meter::Rate | Meter::Window => processes.len() as u64,
            Meter::Leg(..) => 0,
        };
        let restarts = if allowed.forgets { restarts(events) } else { Vec::new() };
        over_spent(meter, &gifts, kept, &restarts, report);
        dry(meter, events, &gifts, allowed.dry, report);
    }
}

fn gift(event: &Event, of: Meter) -> Option<Gift> {
    match *event {
        Event::Spent {
            meter,
            process,
            sent,
            received,
        } if meter == of => Some(Gift {
            process,
            units: 1,
            sent,
            received,
        }),
        Event::Granted {
            ask,
            tokens: (_, kept),
            sent,
            received,
            ..
        } if let Meter::Leg(key, leg) = of
            && key == ask.key =>
        {
            Some(Gift {
                process: ask.process,
                units: if leg.counts_tokens() { kept } else { 1 },
                sent,
                received,
            })
        }
        _ => None,
    }
}

/// From when until when the server was killed and started again.
fn restarts(events: &[Event]) -> Vec<(Nanos, Nanos)> {
    let mut begun = None;
    let mut restarts = Vec::new();
    for event in events {
        match event {
            Event::Fault { fault, at } if fault == "server restarted" => begun = Some(*at),
            Event::Healed { at, .. } => restarts.extend(begun.take().map(|begun| (begun, *at))),
            _ => {}
        }
    }
    restarts
}

fn over_spent(meter: Meter, gifts: &[Gift], kept: u64, restarts: &[(Nanos, Nanos)], report: &mut Report) {
    for first in gifts {
        let from = first.sent;
        let within = gifts.iter().filter(|gift| gift.sent >= from);
        let mut count = 0;
        for last in within {
            count += last.units;
            let span = last.received - from;
            let again = restarts
                .iter()
                .filter(|(begun, ended)| from <= *ended && *begun <= last.received);
            let times = 1 + again.count() as u64;
            let most = match meter.bound() {
                Bound::Rate { per_second, burst } => {
                    burst * times + (span + span / APART).div_ceil(SECOND / per_second)
                }
                Bound::Window { limit, length } if span < nanos(length) - nanos(length) / APART => limit * times,
                Bound::Window { .. } => break,
            };
            if count > most + kept {
                report.faults.push(Fault::OverSpent {
                    meter,
                    from,
                    span,
                    count,
                    most,
                });
                return;
            }
        }
    }
}

/// Survivors get a grant soon after some have gone, and all processes when all faults are over.
fn dry(meter: Meter, events: &[Event], gifts: &[Gift], allowed: Nanos, report: &mut Report) {
    let last = gifts.last().map_or(0, |gift| gift.received);
    for event in events {
        let (at, gone): (Nanos, &[u32]) = match event {
            Event::Gone { processes, at } => (*at, processes),
            Event::Healed { at, .. } => (*at, &[]),
            _ => continue,
        };
        let mut others = gifts.iter().filter(|gift| !gone.contains(&gift.process));
        let next = others.find(|gift| gift.received >= at).map(|gift| gift.received);
        let until = next.unwrap_or(last.max(at + 10 * allowed));
        let held_up = stalled(events, at, until, gone) + faulty(events, at, until);
        let took = next.map(|next| next - at);
        if took.is_none_or(|took| took > allowed + held_up) {
            report.faults.push(Fault::Dry {
                meter,
                since: at,
                took,
                allowed: allowed + held_up,
            });
        }
    }
}

/// How long another fault lasted between two instants.
fn faulty(events: &[Event], from: Nanos, until: Nanos) -> Nanos {
    let (mut total, mut begun) = (0, None);
    for event in events {
        match event {
            Event::Fault { at, .. } => begun = Some(*at),
            Event::Healed { at, .. } => {
                let since = begun.take().map_or(*at, |begun| begun.max(from));
                total += (*at).min(until).saturating_sub(since);
            }
            _ => {}
        }
    }
    total
}

/// Finds units of tenants that are in use though no call has taken them: those of a refused one, say.
pub(crate) fn check_in_use(events: &[Event], report: &mut Report) {
    for event in events {
        let Event::InUse { key, units, at } = event else {
            continue;
        };
        if units[LEGS.len()] > 0 {
            let (leg, in_use) = (None, units[LEGS.len()]);
            report.faults.push(Fault::Charged {
                key: *key,
                leg,
                in_use,
                most: 0,
            });
        }
        let taken = taken(events, *key);
        for (leg, &in_use) in LEGS.into_iter().zip(units) {
            let most = left(Meter::Leg(*key, leg).bound(), &taken, leg, *at);
            if in_use > most {
                report.faults.push(Fault::Charged {
                    key: *key,
                    leg: Some(leg),
                    in_use,
                    most,
                });
            }
        }
    }
}

/// The tokens that each request of a tenant may have taken, and the latest instant at which it may have, in order. A refusal by a leg has
/// taken nothing.
fn taken(events: &[Event], of: u32) -> Vec<(Nanos, u64)> {
    let mut waiting = BTreeSet::new();
    let mut taken = Vec::new();
    let mut killed = 0;
    for event in events.iter().filter(|event| event.key().is_none_or(|key| key == of)) {
        match event {
            Event::Asked { ask, .. } => drop(waiting.insert(*ask)),
            Event::Granted {
                ask, tokens, received, ..
            } => {
                waiting.remove(ask);
                taken.push((*received, tokens.0));
            }
            Event::Refused { ask, why, .. } if *why == PERMITS_LEG || LEGS.iter().any(|leg| leg.name() == why) => {
                waiting.remove(ask);
            }
            Event::Refused { ask, at, .. } | Event::Cancelled { ask, at, .. } => {
                waiting.remove(ask);
                taken.push((*at, MOST_TOKENS));
            }
            Event::Killed { at, .. } => killed = *at,
            _ => {}
        }
    }
    taken.extend(waiting.iter().map(|_| (killed, MOST_TOKENS)));
    taken.sort_unstable();
    taken
}

/// The most of what was taken that has not come back at this instant.
fn left(bound: Bound, taken: &[(Nanos, u64)], leg: Leg, at: Nanos) -> u64 {
    let units = |tokens| if leg.counts_tokens() { tokens } else { 1 };
    match bound {
        Bound::Rate { per_second, .. } => {
            let (mut level, mut since) = (0.0_f64, 0);
            let pass = |level: f64, time: Nanos| {
                let gone = (time - time / APART) as f64 / SECOND as f64 * per_second as f64;
                (level - gone).max(0.0)
            };
            for &(time, tokens) in taken {
                level = pass(level, time.saturating_sub(since)) + units(tokens) as f64;
                since = time;
            }
            pass(level, at.saturating_sub(since)).ceil() as u64
        }
        Bound::Window { length, .. } => {
            // Units come back up to one of 64 segments late.
            let length = nanos(length + length / 32);
            let counts = taken.iter().filter(|(time, _)| time + length >= at);
            counts.map(|&(_, tokens)| units(tokens)).sum()
        }
    }
}
