//! The checker itself: lawful histories pass, and each forgery is found for what it is.

use crate::lawful::{BARS, KILLED_AT, SHRUNK_AT, at, history};
use crate::rig::checker::{Fault, Report, check};
use crate::rig::history::{Ask, Event, Writer, read};

const SEEDS: std::ops::Range<u64> = 0..50;

/// The history of each seed, changed by `forge`.
fn forged(forge: impl Fn(&mut Vec<Event>)) -> impl Iterator<Item = Report> {
    SEEDS.map(move |seed| {
        let mut events = history(seed);
        forge(&mut events);
        check(&events, BARS)
    })
}

fn released(events: &[Event], ask: Ask) -> usize {
    let release = |event: &Event| matches!(event, Event::Released { ask: of, .. } if *of == ask);
    events.iter().position(release).expect("it was given back")
}

/// The places of the first grants received after `instant`, of processes that live.
fn grants_after(events: &[Event], instant: u64) -> impl Iterator<Item = (usize, Ask)> + '_ {
    events.iter().enumerate().filter_map(move |(place, event)| match event {
        Event::Granted { ask, sent, .. } if *sent > instant && ask.process != 3 => Some((place, *ask)),
        _ => None,
    })
}

#[test]
fn lawful_histories_pass() {
    for report in forged(|_| {}) {
        assert_eq!(report.faults, [], "{report:?}");
        assert!(report.granted > 200 && report.most == 5, "{report:?}");
        assert!(
            report.recoveries[0].weight > 0 && report.recoveries[0].took > Some(900_000_000),
            "{report:?}"
        );
    }
}

#[test]
fn a_permit_that_was_held_longer_than_it_was_counted_is_found() {
    for report in forged(|events| {
        // The holder of a grant at 1 s reports its return 400 ms later than it was.
        let (_, ask) = grants_after(events, at(1_000)).next().unwrap();
        let place = released(events, ask);
        let Event::Released { at, .. } = &mut events[place] else {
            unreachable!()
        };
        *at += 400_000_000;
    }) {
        assert!(
            report
                .faults
                .iter()
                .any(|fault| matches!(fault, Fault::OverLimit { .. })),
            "{report:?}"
        );
    }
}

#[test]
fn a_shrink_that_was_not_kept_is_found() {
    for report in forged(|events| {
        // The limit had been 2 from a second earlier on.
        for event in events {
            if let Event::Limit {
                limit: 2, sent, done, ..
            } = event
            {
                (*sent, *done) = (SHRUNK_AT - 1_000_000_000, SHRUNK_AT - 999_000_000);
            }
        }
    }) {
        assert!(
            report
                .faults
                .iter()
                .any(|fault| matches!(fault, Fault::OverLimit { limit: 2, .. })),
            "{report:?}"
        );
    }
}

#[test]
fn a_token_that_was_given_twice_is_found() {
    for report in forged(|events| {
        let places: Vec<usize> = grants_after(events, at(500)).map(|(place, _)| place).take(2).collect();
        let Event::Granted { token: first, .. } = events[places[0]] else {
            unreachable!()
        };
        let Event::Granted { token, .. } = &mut events[places[1]] else {
            unreachable!()
        };
        *token = first;
    }) {
        let twice = |fault: &Fault| matches!(fault, Fault::TokenTwice { .. });
        assert_eq!(
            report.faults.iter().filter(|fault| twice(fault)).count(),
            1,
            "{report:?}"
        );
    }
}

#[test]
fn tokens_that_begin_again_are_found() {
    for report in forged(|events| {
        // As if the store had forgotten its counter at 3 s.
        let places: Vec<usize> = grants_after(events, at(3_000)).map(|(place, _)| place).collect();
        for place in places {
            let Event::Granted { token, .. } = &mut events[place] else {
                unreachable!()
            };
            *token -= 90;
        }
    }) {
        assert!(
            report
                .faults
                .iter()
                .any(|fault| matches!(fault, Fault::TokenBack { .. })),
            "{report:?}"
        );
    }
}

/// Permits of the dead come back after 1 s; the bar is 1.1 s. With deaths dated 200 ms earlier, they were slow.
#[test]
fn a_recovery_that_took_too_long_is_found() {
    for report in forged(|events| {
        for event in events {
            if let Event::Gone { at, .. } = event {
                *at -= 200_000_000;
            }
        }
    }) {
        assert!(matches!(report.faults[..], [Fault::SlowRecovery { .. }]), "{report:?}");
    }
}

#[test]
fn a_stall_excuses_its_own_duration_only() {
    let took = |stall: u64| {
        forged(move |events| {
            for event in events.iter_mut() {
                if let Event::Gone { at, .. } = event {
                    *at -= 200_000_000;
                }
            }
            let (from, until) = (KILLED_AT + 100_000_000, KILLED_AT + 100_000_000 + stall);
            for process in 0..3 {
                events.push(Event::Stalled { process, from, until });
            }
        })
    };
    let slow = |report: Report| {
        report
            .faults
            .iter()
            .any(|fault| matches!(fault, Fault::SlowRecovery { .. }))
    };
    assert!(took(200_000_000).all(|report| !slow(report)));
    assert!(took(5_000_000).all(slow));
}

/// A fault that would have begun after the recovery, without stalls.
#[test]
fn a_fault_excuses_only_processes_that_it_stopped() {
    let with = |stall: u64, begins: u64| {
        forged(move |events| {
            for event in events.iter_mut() {
                if let Event::Gone { at, .. } = event {
                    *at -= 200_000_000;
                }
            }
            let from = KILLED_AT;
            for process in 0..3 {
                let until = from + stall;
                events.push(Event::Stalled { process, from, until });
            }
            let (fault, at) = ("another".to_owned(), KILLED_AT + begins);
            events.push(Event::Fault {
                fault: fault.clone(),
                at,
            });
            let at = at + 300_000_000;
            events.push(Event::Healed { fault, at });
        })
    };
    let slow = |report: Report| {
        let mut faults = report.faults.iter();
        faults.any(|fault| matches!(fault, Fault::SlowRecovery { .. }))
    };
    // The bar is 900 ms after the kill, and 30 ms more for the stall.
    assert!(with(30_000_000, 910_000_000).all(|report| !slow(report)));
    assert!(with(30_000_000, 940_000_000).all(slow), "it began too late");
    assert!(with(30_000_000, 890_000_000).all(slow), "it began while there was time");
    assert!(with(0, 910_000_000).all(slow), "no process was stalled");
}

#[test]
fn a_waiter_that_is_never_answered_is_found() {
    for report in forged(|events| {
        let (place, ask) = grants_after(events, at(1_000)).next().unwrap();
        let release = released(events, ask);
        events.remove(release);
        events.remove(place);
    }) {
        assert!(matches!(report.faults[..], [Fault::Stuck { .. }]), "{report:?}");
    }
}

#[test]
fn a_permit_that_is_never_given_back_is_found() {
    for report in forged(|events| {
        let (_, ask) = grants_after(events, at(1_000)).next().unwrap();
        events.remove(released(events, ask));
    }) {
        assert!(
            report.faults.iter().any(|fault| matches!(fault, Fault::Kept { .. })),
            "{report:?}"
        );
    }
}

#[test]
fn keys_that_are_left_or_not_looked_for_are_found() {
    for report in forged(|events| *events.last_mut().unwrap() = Event::Left { keys: 2 }) {
        assert_eq!(report.faults, [Fault::KeysLeft { keys: 2 }]);
    }
    for report in forged(|events| drop(events.pop())) {
        assert_eq!(report.faults, [Fault::KeysUnseen]);
    }
}

#[test]
fn a_store_that_stays_down_is_found() {
    for report in forged(|events| {
        events.push(Event::Healed {
            fault: "stop".into(),
            at: at(5_900),
        });
    }) {
        assert!(matches!(report.faults[..], [Fault::StillDown { .. }]), "{report:?}");
    }
}

#[test]
fn a_deadline_that_counts_from_the_answer_on_is_found() {
    for report in forged(|events| {
        let (place, _) = grants_after(events, at(1_000)).next().unwrap();
        let Event::Granted { received, deadline, .. } = &mut events[place] else {
            unreachable!()
        };
        *deadline = *received + BARS.ttl + 1;
    }) {
        assert!(
            report
                .faults
                .iter()
                .any(|fault| matches!(fault, Fault::LateDeadline { .. })),
            "{report:?}"
        );
    }
}

#[test]
fn a_history_is_read_as_it_was_written_but_for_a_torn_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    let events = history(1);
    let writer = Writer::create(&path).unwrap();
    events.iter().for_each(|event| writer.write(event));
    assert_eq!(read(&path).unwrap(), events);

    let mut text = std::fs::read(&path).unwrap();
    text.truncate(text.len() - 5);
    std::fs::write(&path, &text).unwrap();
    assert_eq!(read(&path).unwrap(), events[..events.len() - 1]);

    text[3] = b'?';
    std::fs::write(&path, &text).unwrap();
    let error = read(&path).unwrap_err();
    assert!(error.contains("history:1: "), "{error}");
}
