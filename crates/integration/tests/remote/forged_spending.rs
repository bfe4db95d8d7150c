//! The checker of rates and windows: lawful histories pass, and each forgery is found for what it is.

use crate::rig::checker::{Allowed, Fault, Report, check_spent};
use crate::rig::history::Event;
use crate::rig::instant::Nanos;
use crate::rig::spender::{BURST, Bound, LENGTH, LIMIT, METERS, Meter, RATE};

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;
/// The clock of a machine does not begin at zero.
const BEGIN: Nanos = 77 * SECOND;
const PROCESSES: u32 = 3;
const ALLOWED: Allowed = Allowed {
    dry: 3 * SECOND,
    forgets: false,
};

fn spent(meter: Meter, nth: u64, at: Nanos) -> Event {
    // Requested for a while before.
    let wait = 5 * MS + nth % 7 * 30 * MS;
    Event::Spent {
        meter,
        process: nth as u32 % PROCESSES,
        sent: BEGIN + at.saturating_sub(wait),
        received: BEGIN + at,
    }
}

/// All that both can give in twenty seconds, at the earliest instants.
fn history() -> Vec<Event> {
    let mut events = Vec::new();
    for nth in 0..BURST + 20 * RATE {
        let at = nth.saturating_sub(BURST) * SECOND / RATE;
        events.push(spent(Meter::Rate, nth, SECOND + at));
    }
    let length = LENGTH.as_nanos() as Nanos;
    for nth in 0..10 * LIMIT {
        events.push(spent(Meter::Window, nth, SECOND + nth / LIMIT * length));
    }
    events
}

fn report(events: &[Event], allowed: Allowed) -> Report {
    let mut report = Report::default();
    check_spent(events, &METERS, allowed, &mut report);
    report
}

fn faults(events: &[Event]) -> Vec<Fault> {
    report(events, ALLOWED).faults
}

#[test]
fn lawful_spending_passes() {
    let report = report(&history(), ALLOWED);
    assert_eq!(report.faults, []);
    assert_eq!(report.spent, [(Meter::Rate, 210), (Meter::Window, 100)]);
}

/// Each process may have had an unused one at first, some come while they wait, and clocks drift apart.
#[test]
fn more_than_one_for_each_process_is_found() {
    for meter in METERS {
        for at in [1_000, 7_000, 15_000] {
            let mut events = history();
            let extra = u64::from(PROCESSES) + 5;
            events.extend((0..extra).map(|nth| Event::Spent {
                meter,
                process: nth as u32 % PROCESSES,
                sent: BEGIN + at * MS,
                received: BEGIN + at * MS,
            }));
            let over = |fault: &Fault| matches!(fault, Fault::OverSpent { meter: of, .. } if *of == meter);
            assert!(faults(&events).iter().any(over), "{meter:?} at {at}");
            assert!(faults(&events[..events.len() - 5]).is_empty(), "{meter:?} at {at}");
        }
    }
}

/// A rate that is fast by 10 % is found in the long run.
#[test]
fn a_rate_that_runs_fast_is_found() {
    let mut events = history();
    for event in &mut events {
        if let Event::Spent {
            meter: Meter::Rate,
            sent,
            received,
            ..
        } = event
        {
            *sent -= (*sent - BEGIN) / 10;
            *received -= (*received - BEGIN) / 10;
        }
    }
    assert!(matches!(
        faults(&events)[..],
        [Fault::OverSpent { meter: Meter::Rate, .. }]
    ));
}

fn struck(at: Nanos, until: Nanos) -> [Event; 2] {
    let fault = || String::from("server restarted");
    let (at, until) = (BEGIN + at, BEGIN + until);
    [
        Event::Fault { fault: fault(), at },
        Event::Healed {
            fault: fault(),
            at: until,
        },
    ]
}

/// A store without persistence is full when it comes back, once.
#[test]
fn permits_that_a_store_forgets_are_granted_again_once() {
    let forgets = Allowed {
        forgets: true,
        ..ALLOWED
    };
    for meter in METERS {
        let mut events = history();
        events.extend(struck(7 * SECOND, 8 * SECOND));
        let extra = match meter.bound() {
            Bound::Rate { burst, .. } => burst,
            Bound::Window { limit, .. } => limit,
        };
        let again = |nth| spent(meter, nth, 8 * SECOND);
        events.extend((0..extra).map(again));
        assert!(!faults(&events).is_empty(), "{meter:?}");
        assert_eq!(report(&events, forgets).faults, [], "{meter:?}");
        events.extend((0..extra).map(again));
        assert!(!report(&events, forgets).faults.is_empty(), "{meter:?}");
    }
}

fn silent(meter: Meter, from: Nanos, until: Nanos, of: impl Fn(u32) -> bool) -> Vec<Event> {
    let mut events = history();
    events.retain(|event| match event {
        Event::Spent {
            meter: at,
            process,
            received,
            ..
        } => *at != meter || !of(*process) || !(BEGIN + from..BEGIN + until).contains(received),
        _ => true,
    });
    events
}

#[test]
fn a_lack_of_grants_is_found() {
    for meter in METERS {
        for (until, is_found) in [(9, false), (13, true), (100, true)] {
            // Since the end of all faults.
            let mut events = silent(meter, 8 * SECOND, until * SECOND, |_| true);
            events.extend(struck(7 * SECOND, 8 * SECOND));
            let dry = |fault: &Fault| matches!(fault, Fault::Dry { meter: of, .. } if *of == meter);
            assert_eq!(faults(&events).iter().any(dry), is_found, "{meter:?} until {until}");
            // The time of another fault is not counted.
            let mut events = silent(meter, 8 * SECOND, until * SECOND, |_| true);
            events.extend(struck(7 * SECOND, 8 * SECOND));
            events.extend(struck(8 * SECOND, 11 * SECOND));
            let is_found = is_found && until > 13;
            assert_eq!(faults(&events).iter().any(dry), is_found, "{meter:?} until {until}");
        }
    }
}

/// The survivors get nothing: grants to the dead are no sign of life.
#[test]
fn a_block_by_dead_processes_is_found() {
    for meter in METERS {
        let gone = Event::Gone {
            processes: vec![0],
            at: BEGIN + 8 * SECOND,
        };
        let mut events = silent(meter, 8 * SECOND, 14 * SECOND, |process| process != 0);
        events.push(gone.clone());
        let dry = |fault: &Fault| matches!(fault, Fault::Dry { meter: of, .. } if *of == meter);
        assert!(faults(&events).iter().any(dry), "{meter:?}");
        // While a process was stalled.
        events.push(Event::Stalled {
            process: 1,
            from: BEGIN + 8 * SECOND,
            until: BEGIN + 13 * SECOND,
        });
        assert!(!faults(&events).iter().any(dry), "{meter:?}");
        let mut events = history();
        events.push(gone);
        assert_eq!(faults(&events), [], "{meter:?}");
    }
}
