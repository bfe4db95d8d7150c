//! The laws of the breaker's machines.

use super::count_window::CountWindow;
use super::history::{History, Learnt};
use super::machine::{Answer, CircuitState, Machine, ProbeVerdict};
use super::open_time::{OpenTime, Trip};
use super::streak::Streak;
use super::thresholds::{Alarm, CallCounts, CallResult, Thresholds};
use super::time_window::TimeWindow;
use crate::laws::{Inputs, holds};
use std::time::Duration;

const MILLION: u64 = 1_000_000;

fn result(inputs: &mut Inputs) -> CallResult {
    let (failed, slow) = inputs.one_of(&[(false, false), (true, false), (false, true), (true, true)]);
    CallResult { failed, slow }
}

fn counts(results: impl Iterator<Item = (CallResult, u64)>) -> CallCounts {
    results.fold(CallCounts::default(), |mut counts, (result, n)| {
        counts.add(result, n);
        counts
    })
}

/// The last results, and no others; a result that may make them reach an alarm is reported.
#[test]
fn a_count_window_counts_the_last_results() {
    holds([2, 3], |inputs| {
        let size = 1 + inputs.number(9, 2) as usize;
        let window = CountWindow::new(size);
        let (mut last, mut period) = (Vec::new(), inputs.number(1 << 28, 0));
        window.reset(period);
        let alarm = Alarm {
            calls: 1 + inputs.number(9, 1),
            failed: 1 + inputs.number(9, 1),
            slow: 1 + inputs.number(9, 1),
        };
        while inputs.goes_on() {
            let before = counts(last.iter().rev().take(size).copied());
            match inputs.below(8) {
                0 => {
                    period += 1;
                    window.reset(period);
                    last.clear();
                }
                1 => {
                    // Of a period that is over.
                    let result = result(inputs);
                    assert!(!window.record(period.wrapping_sub(1), result, 1, &alarm));
                }
                _ => {
                    let (result, n) = (result(inputs), 1 + inputs.number(12, 1));
                    let looks = window.record(period, result, n, &alarm);
                    last.extend((0..n.min(size as u64)).map(|_| (result, 1)));
                    let now = counts(last.iter().rev().take(size).copied());
                    let reached = |counts: CallCounts| {
                        counts.calls >= alarm.calls && (counts.failed >= alarm.failed || counts.slow >= alarm.slow)
                    };
                    assert!(
                        looks || reached(before) || !reached(now),
                        "{before:?}, then {now:?} of {alarm:?}"
                    );
                }
            }
            let now = counts(last.iter().rev().take(size).copied());
            assert_eq!((window.counts(period), window.recount(period)), (now, now));
            assert_eq!(window.counts(period.wrapping_add(1)), CallCounts::default());
        }
    });
}

/// The results of the current segment and of the nine before it.
#[test]
fn a_time_window_counts_the_last_segments() {
    holds([2, 3], |inputs| {
        let (segment, mut now) = (1 + inputs.number(1 << 40, 2), inputs.number(1 << 62, 3));
        let window = TimeWindow::new(segment, now);
        let mut begun = now;
        let mut all = Vec::new();
        while inputs.goes_on() {
            match inputs.below(6) {
                0 => {
                    window.reset(now);
                    begun = now;
                    all.clear();
                }
                1 => {
                    let part = inputs.number(segment, 1).min(segment - 1);
                    now += (segment * inputs.number(1 << 16, 0)).min(1 << 60) + part;
                }
                2 => now += segment * inputs.number(12, 10) + inputs.one_of(&[0, segment - 1]),
                3 => assert!(!window.record(result(inputs), 1, now, || false)),
                kind => {
                    let (result, n) = (result(inputs), inputs.number(1 << 20, 1));
                    // Some read the clock long ago: they count in their segment, or nowhere.
                    let late = if kind == 4 {
                        0
                    } else {
                        segment * inputs.one_of(&[1, 9, 10, 16, 17])
                    };
                    let at = now.saturating_sub(late).max(begun);
                    let looks = window.record(result, n, at, || true);
                    all.push((at, result, n));
                    let number = |at: u64| (at - begun) / segment;
                    let is_bad = |&(bad, result, _): &(u64, CallResult, u64)| {
                        (result.failed || result.slow) && number(at).saturating_sub(number(bad)) < 10
                    };
                    assert_eq!(looks, all.iter().any(is_bad));
                }
            }
            let number = |at: u64| (at - begun) / segment;
            let last = all.iter().filter(|(at, ..)| number(now) - number(*at) < 10);
            assert_eq!(window.counts(now), counts(last.map(|&(_, result, n)| (result, n))));
        }
    });
}

#[test]
fn a_streak_counts_the_failures_since_the_last_success() {
    holds([4, 6], |inputs| {
        let (streak, mut period, mut count) = (Streak::new(), inputs.number(1 << 31, 0), 0);
        streak.reset(period);
        while inputs.goes_on() {
            match inputs.below(4) {
                0 => {
                    period += 1;
                    streak.reset(period);
                    count = 0;
                }
                1 => assert_eq!(
                    streak.record(period.wrapping_sub(1), true, 1),
                    0,
                    "of a period that is over"
                ),
                _ => {
                    let (failed, n) = (inputs.below(2) == 1, 1 + inputs.number(u64::from(u32::MAX), 1));
                    count = if failed { (count + n).min(u32::MAX.into()) } else { 0 };
                    assert_eq!(streak.record(period, failed, n), count);
                }
            }
            assert_eq!(streak.is_running(), count > 0);
        }
    });
}

fn thresholds(inputs: &mut Inputs, minimum: u64) -> Thresholds {
    let rate = |inputs: &mut Inputs| match inputs.below(3) {
        0 => None,
        _ => Some(1 + inputs.one_of(&[0, MILLION / 3, MILLION / 2, MILLION - 1])),
    };
    Thresholds {
        minimum,
        failure_rate: rate(inputs),
        slow_rate: rate(inputs),
    }
}

/// Counts reach a rate as the fractions do; and no counts reach it below the alarm.
#[test]
fn thresholds_are_reached_as_fractions_are() {
    holds([1, 1], |inputs| {
        let minimum = 1 + inputs.number(1 << 20, 3);
        let thresholds = thresholds(inputs, minimum);
        let calls = inputs.number(1 << 40, 7);
        let counts = CallCounts {
            calls,
            failed: inputs.number(calls, 7),
            slow: inputs.number(calls, 7),
        };
        let reaches = |rate: Option<u64>, part: u64| {
            rate.is_some_and(|rate| {
                part > 0 && i128::from(part) * i128::from(MILLION) - i128::from(rate) * i128::from(calls) >= 0
            })
        };
        let reached = calls >= minimum
            && (reaches(thresholds.failure_rate, counts.failed) || reaches(thresholds.slow_rate, counts.slow));
        assert_eq!(thresholds.are_reached_by(counts), reached);
        let alarm = thresholds.alarm();
        assert!(!reached || (calls >= alarm.calls && (counts.failed >= alarm.failed || counts.slow >= alarm.slow)));
        // The least counts that reach it are those of the alarm.
        let least = CallCounts {
            calls: minimum,
            failed: alarm.failed,
            slow: alarm.slow,
        };
        if thresholds.failure_rate.is_some() {
            assert!(thresholds.are_reached_by(CallCounts { slow: 0, ..least }));
            assert!(!thresholds.are_reached_by(CallCounts {
                failed: alarm.failed - 1,
                slow: 0,
                ..least
            }));
        } else {
            assert_eq!(alarm.failed, u64::MAX);
        }
        if thresholds.slow_rate.is_some() {
            assert!(thresholds.are_reached_by(CallCounts { failed: 0, ..least }));
            assert!(!thresholds.are_reached_by(CallCounts {
                failed: 0,
                slow: alarm.slow - 1,
                ..least
            }));
        } else {
            assert_eq!(alarm.slow, u64::MAX);
        }
        let probes = thresholds.for_probes(calls);
        let failure_rate = Some(thresholds.failure_rate.unwrap_or(MILLION / 2));
        assert_eq!(
            probes,
            Thresholds {
                minimum: calls,
                failure_rate,
                ..thresholds
            }
        );
    });
}

/// A probe of a half-open circuit: its period, and its units.
type Probe = (u64, u64);

/// Whatever is asked, recorded and given back in any order: at most the probes are out or recorded, a half-open circuit decides on all of
/// them, an open one admits nothing before its instant, and no report of an earlier period changes anything.
#[test]
fn a_circuit_keeps_its_laws() {
    holds([2, 3], |inputs| {
        let (probes, overdue) = (1 + inputs.number(4, 1), 1 + inputs.number(1_000, 2));
        let thresholds = thresholds(inputs, 1);
        let (mut machine, mut now) = (Machine::new(probes, overdue), inputs.number(1 << 40, 0));
        assert_eq!(machine.probe_count(), probes);
        let mut out = Vec::<Probe>::new();
        let (mut recorded, mut hold_off, mut last_probe) = (CallCounts::default(), 0, 0);
        let mut opened = 0u32;
        // Some begin with a circuit whose open time is over, or with a probe of an earlier period besides.
        let begins = inputs.below(3);
        for round in 0..begins {
            assert!(machine.open(machine.period(), CallCounts::default(), 0, now));
            opened += 1;
            if round + 1 < begins {
                assert_eq!(machine.ask(1, now), Answer::Goes);
                out.push((machine.period(), 1));
                last_probe = now;
            }
        }
        while inputs.goes_on() {
            let (state, period) = (machine.state(), machine.period());
            let ours = |out: &[Probe]| {
                out.iter()
                    .filter(|probe| probe.0 == period)
                    .map(|probe| probe.1)
                    .sum::<u64>()
            };
            match inputs.below(9) {
                0 => now += inputs.number(1 << 20, 3),
                1 | 2 => {
                    let units = inputs.number(6, 2);
                    let before = machine;
                    let told = machine.answer(units, 0, now);
                    if state == CircuitState::HalfOpen {
                        // Behind others. Without a probe out it is not known when one comes back.
                        let (ahead, held) = (inputs.number(6, 1), ours(&out));
                        let free = probes - recorded.calls - held;
                        let fits = units.min(probes - recorded.calls) + ahead <= free;
                        let behind = machine.answer(units, ahead, now);
                        assert_eq!(behind == Answer::Goes, fits);
                        assert_eq!(behind == Answer::OnEvent, !fits && held == 0);
                    }
                    let answer = machine.ask(units, now);
                    assert_eq!(answer, told);
                    match (state, answer) {
                        (CircuitState::Closed | CircuitState::Disabled | CircuitState::MetricsOnly, answer) => {
                            assert_eq!(answer, Answer::Goes);
                            assert!(state.admits());
                        }
                        (CircuitState::ForcedOpen, answer) => assert_eq!(answer, Answer::OnEvent),
                        (CircuitState::Open, Answer::Until(at)) => assert!(at == before.until() && now < at),
                        (CircuitState::Open, answer) => {
                            // Its time is over, and no probe is out.
                            assert!(now >= before.until());
                            assert_eq!(answer, Answer::Goes);
                            assert_eq!(
                                (machine.state(), machine.period()),
                                (CircuitState::HalfOpen, period + 1)
                            );
                            recorded = CallCounts::default();
                            last_probe = last_probe.max(now);
                            out.push((machine.period(), units.min(probes)));
                        }
                        (CircuitState::HalfOpen, answer) => {
                            let (held, missing) = (ours(&out), probes - recorded.calls);
                            let fits = units.min(missing) <= missing - held;
                            match answer {
                                Answer::Goes => {
                                    assert!(fits);
                                    last_probe = last_probe.max(now);
                                    out.push((period, units.min(missing)));
                                }
                                Answer::OnEvent => assert!(!fits && held == 0),
                                Answer::OnProbe(at) => {
                                    assert!(!fits && held > 0 && at == last_probe + overdue && at > now);
                                }
                                Answer::Overdue => assert!(!fits && held > 0 && last_probe + overdue <= now),
                                Answer::Until(_) => panic!("it is half open"),
                            }
                        }
                    }
                }
                3 if !out.is_empty() => {
                    let (of, units) = out.remove(inputs.below(out.len() as u64) as usize);
                    let is_current = of == period && state == CircuitState::HalfOpen;
                    assert_eq!(machine.give_back(of, units), is_current);
                }
                4 | 5 if !out.is_empty() => {
                    let (of, units) = out.remove(inputs.below(out.len() as u64) as usize);
                    let result = result(inputs);
                    let verdict = machine.record_probe(of, result, units, &thresholds);
                    if of != period || state != CircuitState::HalfOpen {
                        assert_eq!(verdict, ProbeVerdict::Undecided);
                        continue;
                    }
                    recorded.add(result, units);
                    assert_eq!((machine.probe_results(), machine.counts()), (recorded, recorded));
                    assert!(recorded.calls <= probes);
                    let is_sick = thresholds.for_probes(probes).are_reached_by(recorded);
                    match verdict {
                        ProbeVerdict::Undecided => assert!(recorded.calls < probes),
                        ProbeVerdict::Healthy => assert!(recorded.calls == probes && !is_sick),
                        ProbeVerdict::Sick => assert!(recorded.calls == probes && is_sick),
                    }
                    // The circuit does as the verdict says.
                    match verdict {
                        ProbeVerdict::Undecided => {}
                        ProbeVerdict::Healthy => {
                            machine.go(CircuitState::Closed);
                            (opened, hold_off) = (0, 0);
                        }
                        ProbeVerdict::Sick => {
                            let open = 1 + inputs.number(1_000, 2);
                            assert!(machine.open(period, recorded, open, now));
                            opened += 1;
                            assert!(machine.until() == (now + open).max(hold_off) && machine.counts() == recorded);
                        }
                    }
                    if verdict != ProbeVerdict::Undecided {
                        assert_eq!(machine.period(), period + 1);
                    }
                }
                6 => {
                    let open = inputs.number(u64::MAX, 3);
                    let of = period - inputs.below(2).min(period);
                    let did = machine.open(of, CallCounts::default(), open, now);
                    assert_eq!(did, of == period);
                    if did {
                        opened = opened.saturating_add(1);
                        assert_eq!(
                            (machine.state(), machine.until()),
                            (CircuitState::Open, now.saturating_add(open).max(hold_off))
                        );
                    }
                }
                7 => {
                    let until = now + inputs.number(1_000, 3);
                    let before = machine.until();
                    let later = machine.hold_off(until);
                    hold_off = hold_off.max(until);
                    assert_eq!(later, state == CircuitState::Open && hold_off > before);
                    assert_eq!(machine.until(), if later { hold_off } else { before });
                }
                _ => {
                    let to = inputs.one_of(&[
                        CircuitState::Closed,
                        CircuitState::ForcedOpen,
                        CircuitState::MetricsOnly,
                        CircuitState::Disabled,
                    ]);
                    machine.go(to);
                    (opened, hold_off) = (0, 0);
                    assert_eq!(
                        (machine.state(), machine.period(), machine.counts()),
                        (to, period + 1, CallCounts::default())
                    );
                    assert_eq!(
                        to.records(),
                        matches!(to, CircuitState::Closed | CircuitState::MetricsOnly)
                    );
                }
            }
            assert_eq!(machine.opened(), opened);
            assert_eq!(CircuitState::from_bits(machine.state() as u64), machine.state());
            assert_eq!(
                [6, 7, u64::MAX].map(CircuitState::from_bits),
                [CircuitState::ForcedOpen; 3]
            );
            let admits = [CircuitState::Closed, CircuitState::Disabled, CircuitState::MetricsOnly];
            assert_eq!(machine.state().admits(), admits.contains(&machine.state()));
            if machine.state() == CircuitState::HalfOpen {
                let now_out = out.iter().filter(|probe| probe.0 == machine.period());
                let (held, missing) = (
                    now_out.map(|probe| probe.1).sum::<u64>(),
                    probes - machine.counts().calls,
                );
                for units in [0, 1, 2, probes + 1] {
                    let wanted = match units.min(missing) + held <= missing {
                        true => Answer::Goes,
                        false if held == 0 => Answer::OnEvent,
                        false if last_probe + overdue <= now => Answer::Overdue,
                        false => Answer::OnProbe(last_probe + overdue),
                    };
                    assert_eq!(
                        machine.answer(units, 0, now),
                        wanted,
                        "{units} beside {held} of {missing}"
                    );
                }
            }
            // Behind others it is not admitted earlier.
            let goes = |ahead| machine.answer(1, ahead, now) == Answer::Goes;
            assert!(goes(0) || !goes(1));
            assert!(machine.state().admits() || !goes(probes));
        }
    });
}

/// What is usual lies between the rates of batches, and the threshold between the least one and the highest.
#[test]
fn a_learnt_threshold_stays_within_its_bounds() {
    holds([1, 2], |inputs| {
        let minimum = 1 + inputs.number(1_000, 1);
        let (least, most) = (0.01, 0.6);
        let memory = 1 + inputs.number(History::MAX_MEMORY - 1, 3);
        let chart = History::new()
            .least(least)
            .deviations(1.0)
            .memory(memory)
            .check(minimum)
            .expect("it is allowed");
        let learnt = Learnt::new(chart);
        let thresholds = Thresholds {
            minimum,
            failure_rate: Some((most * MILLION as f64) as u64),
            slow_rate: None,
        };
        let batch = memory.div_ceil(100).max(minimum).min(1 << 15);
        let mut recorded = 0;
        assert!(!learnt.has_any() && learnt.usual() == (None, None));
        let every = 1 + inputs.number(20, 2);
        let mut rounds = 0;
        while inputs.goes_on() && rounds < 3 {
            rounds += 1;
            for call in 0..12 * batch.min(100) {
                let failed = call % every == 0;
                learnt.record(CallResult { failed, slow: true }, 1, &thresholds);
                recorded += 1;
            }
            assert!(learnt.has_any());
            let (usual, slow) = learnt.usual();
            assert_eq!(slow, None, "that has no threshold");
            let calls = 1 + inputs.number(1 << 30, 5);
            let adapted = learnt.adapt(thresholds, calls).failure_rate.expect("it has one");
            match usual {
                None => {
                    assert!(recorded <= 10 * batch, "{recorded} of {batch}");
                    assert_eq!(adapted, 600_000);
                }
                Some(usual) => {
                    assert!(recorded > 10 * batch);
                    // Batches that begin elsewhere have one failure more or less.
                    let rate = 1.0 / every as f64;
                    let off = (usual as f64 / 1e6 - rate).abs();
                    assert!(
                        off <= 1.0 / batch as f64 + 1e-3,
                        "{usual} of {rate}, {batch} in a batch"
                    );
                    let part = usual as f64 / 1e6;
                    let exact = (part + (part * (1.0 - part) / calls as f64).sqrt()).clamp(least, most);
                    assert!((adapted as f64 / 1e6 - exact).abs() < 2e-6, "{adapted} {exact}");
                }
            }
            assert!((10_000..=600_000).contains(&adapted));
            assert_eq!(learnt.lowest(thresholds).failure_rate, Some(10_000));
            if inputs.below(2) == 1 {
                learnt.drop_batch();
                assert_eq!(learnt.usual().0, usual);
                // A full batch is the current one until the next begins.
                recorded -= (recorded - 1) % batch + 1;
            }
        }
    });
}

/// The usual rate follows those of the batches, each of which counts for a hundredth once there are as many. A batch that is dropped leaves
/// no trace, and the rates of failures and of slow calls are learnt apart and alike.
#[test]
fn a_usual_rate_is_the_average_of_the_batches() {
    holds([2, 3], |inputs| {
        let minimum = 2 + inputs.number(30, 2);
        let history = History::new().least(0.01).deviations(1.0).memory(1);
        let learnt = Learnt::new(history.check(minimum).expect("it is allowed"));
        let thresholds = Thresholds {
            minimum,
            failure_rate: Some(600_000),
            slow_rate: Some(700_000),
        };
        let rates = [inputs.below(minimum + 1), inputs.below(minimum + 1)];
        let part = inputs.below(3).min(minimum - 1);
        let (mut usual, mut batches) = (0.0, 0u32);
        for batch in 0..8 + inputs.number(200, 5) {
            let bad = rates[batch as usize % 2];
            for call in 0..minimum {
                learnt.record(
                    CallResult {
                        failed: call < bad,
                        slow: call < bad,
                    },
                    1,
                    &thresholds,
                );
            }
            for _ in 0..part {
                // The next batch begins, is bad, and is dropped.
                learnt.record(
                    CallResult {
                        failed: true,
                        slow: true,
                    },
                    1,
                    &thresholds,
                );
            }
            if part > 0 {
                learnt.drop_batch();
                batches += 1;
                usual += (bad as f64 / minimum as f64 * 1e6 - usual) / f64::from(batches.min(100));
            } else {
                // Once the next begins the last is learnt, and not before.
                let before = learnt.usual();
                assert_eq!(before.0.is_some(), batches >= 10);
                learnt.record(
                    CallResult {
                        failed: false,
                        slow: false,
                    },
                    1,
                    &thresholds,
                );
                learnt.drop_batch();
                batches += 1;
                usual += (bad as f64 / minimum as f64 * 1e6 - usual) / f64::from(batches.min(100));
            }
            let (failed, slow) = learnt.usual();
            assert!(failed == slow && failed.is_some() == (batches >= 10));
            if let Some(failed) = failed {
                // Each step rounds by half a millionth and a half, up to a hundred of which are not forgotten.
                assert!((failed as f64 - usual).abs() <= 110.0, "{failed} for {usual}");
                let adapted = learnt.adapt(thresholds, 100);
                assert_eq!(adapted.slow_rate.map(|rate| rate.min(600_000)), adapted.failure_rate);
            }
            let lowest = learnt.lowest(thresholds);
            assert_eq!((lowest.failure_rate, lowest.slow_rate), (Some(10_000), Some(10_000)));
        }
    });
    for (deviations, is_allowed) in [
        (0.0, false),
        (1e-9, true),
        (100.0, true),
        (100.1, false),
        (f64::NAN, false),
    ] {
        assert_eq!(History::new().deviations(deviations).check(1).is_ok(), is_allowed);
    }
}

/// It grows with each attempt up to the longest, and jitter spreads it to both sides.
#[test]
fn an_open_time_grows_up_to_the_longest() {
    holds([1, 1], |inputs| {
        let millis = Duration::from_millis;
        let (first, most) = (1 + inputs.number(100_000, 5), 1 + inputs.number(10_000_000, 20));
        let factor = inputs.one_of(&[1.0, 1.5, 2.0, 100.0]);
        let trip = |attempt| Trip {
            attempt,
            calls: 1,
            failed: 1,
            slow: 0,
        };
        let time = OpenTime::exponential(millis(first), factor, millis(most));
        assert!(time.check().is_ok());
        let attempt = 1 + inputs.number(u64::from(u32::MAX) - 2, 6) as u32;
        let exact = (first as f64 * factor.powf(f64::from(attempt - 1))).min(most as f64) / 1e3;
        let found = time.after(trip(attempt), 0.3);
        assert!(
            (found.as_secs_f64() - exact).abs() <= exact * 1e-9 + 1e-9,
            "{found:?} {exact}"
        );
        assert!(found <= time.after(trip(attempt + 1), 0.7) && found <= millis(most));
        assert_eq!(OpenTime::fixed(millis(first)).after(trip(attempt), 0.1), millis(first));
        let (spread, random) = (inputs.one_of(&[0.25, 1.0]), inputs.one_of(&[0.0, 0.5, 0.75]));
        let jittered = time.jitter(spread).after(trip(attempt), random).as_secs_f64();
        let wanted = exact * (1.0 + spread * (2.0 * random - 1.0));
        assert!((jittered - wanted).abs() <= exact * 1e-8 + 1e-8, "{jittered} {wanted}");
    });
    for (factor, jitter) in [
        (0.9, 0.0),
        (101.0, 0.0),
        (f64::NAN, 0.0),
        (1.0, -0.1),
        (1.0, 1.1),
        (1.0, f64::NAN),
    ] {
        let second = Duration::from_secs(1);
        assert!(
            OpenTime::exponential(second, factor, second)
                .jitter(jitter)
                .check()
                .is_err()
        );
    }
}
