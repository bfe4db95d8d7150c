//! How long it takes until permits of departed holders are back, and until the store serves again.

use super::limits::Limits;
use super::{Bars, Fault, Hold, Of, Report};
use crate::rig::history::Event;
use crate::rig::instant::Nanos;

/// The permits of departed processes, and how long it took until others held them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Recovery {
    pub(crate) gone: Nanos,
    pub(crate) weight: u64,
    pub(crate) took: Option<Nanos>,
    /// How long the processes were stalled meanwhile.
    pub(crate) stalled: Nanos,
}

pub(super) fn check(events: &[Event], holds: &[Hold], of: Of, bars: Bars, report: &mut Report) {
    let limits = Limits::of(events);
    let allowed = bars.life + bars.life / 10;
    for event in events {
        match event {
            Event::Gone { processes, at } if of.binds() => {
                // The permits held the instant before: a kill ends them.
                let weight = holds
                    .iter()
                    .filter(|hold| processes.contains(&hold.ask.process) && hold.live_at(*at - 1))
                    .map(|hold| hold.weight)
                    .sum();
                let full = limits.at(*at).saturating_sub(bars.heaviest);
                let back = others_hold_more_than(full, *at, processes, holds);
                let stalled = stalled(events, *at, back.unwrap_or(Nanos::MAX), processes);
                let took = back.map(|back| back - at);
                let allowed = allowed + stalled + disturbed(events, at + allowed, at + allowed + stalled);
                // With less, the permits of others would be no sign of it.
                if weight >= bars.heaviest && took.is_none_or(|took| took > allowed) {
                    let gone = *at;
                    report.faults.push(Fault::SlowRecovery { gone, took, allowed });
                }
                report.recoveries.push(Recovery {
                    gone: *at,
                    weight,
                    took,
                    stalled,
                });
            }
            Event::Healed { fault, at } => {
                let next = holds
                    .iter()
                    .map(|hold| hold.received)
                    .filter(|received| received >= at)
                    .min();
                let room = room(*at, &limits, bars.heaviest, holds);
                let stalled = stalled(events, *at, next.unwrap_or(Nanos::MAX), &[]);
                let took = next.map(|next| next.saturating_sub(room));
                if took.is_none_or(|took| took > allowed + stalled) {
                    report.faults.push(Fault::StillDown {
                        fault: fault.clone(),
                        healed: *at,
                        took,
                        allowed: allowed + stalled,
                    });
                }
            }
            _ => {}
        }
    }
}

/// The first instant from `at` on at which the heaviest would fit beside the held permits: before that the store may have
/// nothing to give.
fn room(at: Nanos, limits: &Limits, heaviest: u64, holds: &[Hold]) -> Nanos {
    let mut ends: Vec<Nanos> = holds.iter().map(|hold| hold.end).filter(|&end| end > at).collect();
    ends.sort_unstable();
    let fits = |&instant: &Nanos| {
        let live = holds.iter().filter(|hold| hold.live_at(instant));
        live.map(|hold| hold.weight).sum::<u64>() + heaviest <= limits.at(instant)
    };
    std::iter::once(at).chain(ends).find(fits).unwrap_or(at)
}

/// The first instant after `at` at which other processes hold more than `full`: so much that one more of the heaviest does not
/// fit, since a first waiter with that weight lets no other pass. If the departed held as much as the heaviest, that is more
/// than they left free.
fn others_hold_more_than(full: u64, at: Nanos, gone: &[u32], holds: &[Hold]) -> Option<Nanos> {
    let others: Vec<&Hold> = holds.iter().filter(|hold| !gone.contains(&hold.ask.process)).collect();
    let mut starts: Vec<Nanos> = others
        .iter()
        .map(|hold| hold.received)
        .filter(|&start| start > at)
        .collect();
    starts.sort_unstable();
    starts.into_iter().find(|&start| {
        let live = others.iter().filter(|hold| hold.live_at(start));
        live.map(|hold| hold.weight).sum::<u64>() > full
    })
}

/// How long, between two instants, at least one process was stalled that should have run.
pub(super) fn stalled(events: &[Event], from: Nanos, until: Nanos, gone: &[u32]) -> Nanos {
    let mut stalls: Vec<(Nanos, Nanos)> = events
        .iter()
        .filter_map(|event| match event {
            Event::Stalled {
                process,
                from: begun,
                until: ended,
            } if !gone.contains(process) => Some(((*begun).max(from), (*ended).min(until))),
            _ => None,
        })
        .filter(|(begun, ended)| begun < ended)
        .collect();
    stalls.sort_unstable();
    let mut total = 0;
    let mut covered = from;
    for (begun, ended) in stalls {
        total += ended.saturating_sub(begun.max(covered));
        covered = covered.max(ended);
    }
    total
}

/// How long faults last that began between two instants: a recovery that would have ended by the first of them, without stalls,
/// is delayed by the next fault if it had not ended before the second.
fn disturbed(events: &[Event], from: Nanos, mut until: Nanos) -> Nanos {
    let (mut total, mut begun) = (0, None);
    for event in events {
        match event {
            Event::Fault { at, .. } if from < *at && *at < until => begun = Some(*at),
            Event::Healed { at, .. } => {
                let lasted = begun.take().map_or(0, |begun| at - begun);
                total += lasted;
                until += lasted;
            }
            _ => {}
        }
    }
    total
}
