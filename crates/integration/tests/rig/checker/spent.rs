//! The grants of a rate and a window, with their times.
//!
//! A grant was made between the instants of its request and of its answer. So requests that were sent and answered within a
//! span of time were granted within that span, and are at most as many as it allows. A process may hold one from before, for a
//! request that was refused in the end: the next request gets it.

use super::recovery::stalled;
use super::{Fault, Report};
use crate::rig::history::Event;
use crate::rig::instant::{Nanos, nanos};
use crate::rig::spender::{BURST, LENGTH, LIMIT, Meter, RATE};
use std::collections::BTreeSet;

/// What is allowed beside the quota and the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// The longest time without a grant.
    pub(crate) dry: Nanos,
    /// The store loses its data when it is killed.
    pub(crate) forgets: bool,
}

/// A grant of one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gift {
    process: u32,
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
        let kept = processes.len() as u64;
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
            sent,
            received,
        }),
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
        for (count, last) in (1_u64..).zip(within) {
            let span = last.received - from;
            let again = restarts
                .iter()
                .filter(|(begun, ended)| from <= *ended && *begun <= last.received);
            let times = 1 + again.count() as u64;
            let most = match meter {
                Meter::Rate => BURST * times + (span + span / APART).div_ceil(SECOND / RATE),
                Meter::Window if span < nanos(LENGTH) - nanos(LENGTH) / APART => LIMIT * times,
                Meter::Window => break,
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
