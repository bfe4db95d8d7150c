//! The laws of the laws: where a limit goes for what is seen.

use super::aimd::Aimd;
use super::cubic::Cubic;
use super::gradient::Gradient;
use super::gradient2::Gradient2;
use super::law::{LimitLaw, Sample};
use super::trend::Trend;
use super::tuner::{Drawn, Ended, Headroom, Sampler, Settings, Tuner, later};
use super::vegas::Vegas;
use crate::laws::{Inputs, holds};
use std::time::Duration;
use tollgate::Instant;

fn close(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= 1e-9 * wanted.abs().max(1.0)
}

fn limit(inputs: &mut Inputs) -> f64 {
    1.0 + inputs.number(1 << 20, 0) as f64 + inputs.one_of(&[0.0, 0.5, 9.0, 99.0])
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Whatever is seen: a limit stays a number, falls by a drop only or where a law says so, and is not raised by callers that leave half of
/// it unused.
#[test]
fn a_limit_that_is_not_used_is_not_raised_and_a_drop_raises_none() {
    holds([2, 3], |inputs| {
        let mut laws: Vec<(bool, Box<dyn LimitLaw>)> = vec![
            (true, Box::new(Aimd::new())),
            (true, Box::new(Cubic::new())),
            (true, Box::new(Vegas::new())),
            (true, Box::new(Gradient::new().measure_every(u32::MAX))),
            (false, Box::new(Gradient2::new().queue(0))),
            (true, Box::new(Trend::new())),
        ];
        let which = inputs.below(6) as usize;
        let (drop_lowers, law) = &mut laws[which];
        let mut now = limit(inputs);
        while inputs.goes_on() {
            let latency = Duration::from_nanos(inputs.number(1 << 62, 0) + inputs.one_of(&[0, 1_000_000, 50_000_000]));
            let used = inputs.number(1 << 20, 0) + inputs.one_of(&[0, 1, 200]);
            let mut sample = Sample::new(latency, used).over(millis(inputs.number(100_000, 1) * 500));
            sample.dropped = inputs.below(3) == 0;
            let next = law.next(now, &sample);
            assert!(next.is_finite(), "{which}: {now} {sample:?}");
            assert!(
                !sample.dropped || next <= now || !*drop_lowers || now < 4.0,
                "{which}: {now} to {next} by {sample:?}"
            );
            assert!(
                sample.dropped || !sample.is_app_limited(now) || next <= now,
                "{which}: {now} to {next} by {sample:?}"
            );
            now = next.clamp(1.0, 1e9);
        }
    });
}

#[test]
fn aimd_adds_and_multiplies() {
    holds([1, 1], |inputs| {
        let limit = limit(inputs);
        let mut law = Aimd::new().backoff(0.75).increase(3.0).timeout(millis(100));
        let used = limit as u64;
        assert!(close(law.next(limit, &Sample::new(millis(100), used)), limit + 3.0));
        assert!(close(
            law.next(limit, &Sample::new(millis(101), used)),
            (limit * 0.75).floor()
        ));
        assert!(close(
            law.next(limit, &Sample::new(millis(1), used).dropped()),
            (limit * 0.75).floor()
        ));
        let half = Sample::new(millis(1), (limit / 2.0) as u64);
        assert!(half.is_app_limited(limit) == ((limit / 2.0).fract() != 0.0));
        for (given, factor) in [(0.1, 0.5), (2.0, 0.99)] {
            assert!(close(
                Aimd::new().backoff(given).next(1_000.0, &half.dropped()),
                1_000.0 * factor
            ));
        }
    });
}

/// After a drop it is back where it was dropped at when the curve turns, slowly around that instant, and alike on both sides.
#[test]
fn cubic_is_back_where_it_dropped_when_its_curve_turns() {
    holds([1, 1], |inputs| {
        let dropped_at = 10.0 + limit(inputs);
        let (backoff, scale) = (inputs.one_of(&[0.5, 0.7]), inputs.one_of(&[0.1, 0.4]));
        let law = || Cubic::new().backoff(backoff).scale(scale);
        let used = 1 << 40;
        let over = |seconds: f64| Sample::new(millis(1), used).over(Duration::from_secs_f64(seconds));
        let turns = (dropped_at * (1.0 - backoff) / scale).cbrt();
        let after = |age: f64, lowest: f64| {
            // Two windows: the second is short, so that what it looks ahead is next to nothing.
            let mut law = law();
            assert!(close(law.next(dropped_at, &over(1.0).dropped()), dropped_at * backoff));
            law.next(lowest, &over(age - 1e-6));
            law.next(lowest, &over(1e-6))
        };
        let near = |found: f64, wanted: f64| (found - wanted).abs() <= 1e-3 * wanted;
        let most = dropped_at * 10.0;
        assert!(near(after(turns, dropped_at * 0.9), dropped_at));
        let part = turns / 4.0;
        let (before, later) = (
            after(turns - part, dropped_at * backoff),
            after(turns + part, dropped_at * 0.9),
        );
        let gap = scale * part.powi(3);
        assert!(
            near(before, (dropped_at - gap).max(dropped_at * backoff)) || before >= dropped_at * backoff * 1.5 - 1.0
        );
        assert!(near(later, (dropped_at + gap).min(dropped_at * 0.9 * 1.5)));
        // By half at most, and never down.
        assert!(close(after(turns * 50.0, dropped_at), dropped_at * 1.5) && close(after(turns, most), most));
        // Before the first drop it doubles by the second.
        assert!(
            close(law().next(dropped_at, &over(0.5)), dropped_at * 0.5f64.exp2())
                && close(law().next(dropped_at, &over(7.0)), dropped_at * 2.0)
        );
    });
}

/// The queue is the part of the limit that waits. Up where it is short, down where it is long, and still between.
#[test]
fn vegas_follows_the_queue() {
    holds([1, 1], |inputs| {
        let limit = 100.0 + inputs.number(800, 8) as f64;
        let used = limit as u64;
        let mut law = Vegas::new();
        assert!(close(law.next(limit, &Sample::new(millis(100), used)), limit));
        let queue = inputs.number(30, 30) as f64;
        // So that `queue` of the limit wait.
        let latency = 0.1 / (1.0 - (queue - 0.5).max(0.0) / limit);
        let next = law.next(limit, &Sample::new(Duration::from_secs_f64(latency), used));
        let step = 2.0;
        let wanted = match queue {
            queue if queue <= step => limit + 6.0 * step,
            queue if queue < 3.0 * step => limit + step,
            queue if queue > 6.0 * step => limit - step,
            _ => limit,
        };
        assert!(close(next, wanted), "{limit} with {queue}: {next}, not {wanted}");
        let slow = Sample::new(Duration::from_secs_f64(latency), used).dropped();
        assert!(close({ law }.next(limit, &slow), limit - step));
        assert!(close({ law }.backoff(0.5).next(limit, &slow), limit * 0.5));
        assert!(close(law.smoothing(0.25).next(limit, &slow), limit - step * 0.25));
        // A shorter latency is the one to compare with.
        let mut law = Vegas::new();
        for (latency, wanted) in [
            (100, limit),
            (50, limit),
            (50, limit + 12.0),
            (100, limit - 2.0),
            (50, limit + 12.0),
        ] {
            assert!(
                close(law.next(limit, &Sample::new(millis(latency), used)), wanted),
                "{latency}"
            );
        }
        // Once in a while it forgets the shortest.
        let mut law = Vegas::new();
        for _ in 0..30 * 100 - 1 {
            law.next(100.0, &Sample::new(millis(10), 100));
        }
        assert!(close(law.next(100.0, &Sample::new(millis(90), 100)), 100.0));
        assert!(close(law.next(100.0, &Sample::new(millis(90), 100)), 112.0));
    });
}

/// At a steady latency the limit grows by the queue alone, and by less the slower it gets.
#[test]
fn gradients_follow_the_latency() {
    holds([1, 1], |inputs| {
        let limit = 50.0 + limit(inputs);
        let used = 2 * limit as u64;
        let times = 1 + inputs.number(99, 5);
        let sample = |latency: u64| Sample::new(millis(latency), used);
        let mut law = Gradient2::new().smoothing(0.5).tolerance(2.0).queue(6);
        for _ in 0..10 {
            assert!(close(law.next(limit, &sample(100)), limit + 3.0));
        }
        // The average of the first is exact, and later ones count little.
        let mut average = law;
        let slower = average.next(limit, &sample(100 * times));
        let long = 100.0 + (100.0 * times as f64 - 100.0) * 2.0 / 601.0;
        let gradient = (2.0 * long / (100.0 * times as f64)).clamp(0.5, 1.0);
        assert!(close(slower, limit * 0.5 + (limit * gradient + 6.0) * 0.5), "{slower}");
        assert!(close(
            { law }.next(limit, &sample(100).dropped()),
            limit * 0.5 + (limit * 0.5 + 6.0) * 0.5
        ));
        // Once it is fast again the average comes down sooner.
        let faster = law.next(limit, &sample(10));
        assert!(close(faster, limit + 3.0));

        let mut law = Gradient::new().buffer(0.5).measure_every(3).measure_at(7);
        assert!(close(law.next(limit, &sample(100)), limit));
        let grown = |gradient: f64| limit * gradient + (limit * gradient).sqrt();
        let gradient = (150.0 / (100 * times) as f64).clamp(0.5, 2.0);
        assert!(close(law.next(limit, &sample(100 * times)), grown(gradient)));
        assert!(close(law.next(limit, &sample(1).dropped()), grown(0.5)));
        // Then it is measured at a low limit, once the requests of before are gone, and goes on where it was.
        assert!(close(law.next(limit, &sample(100)), 7.0));
        assert!(close(law.next(7.0, &Sample::new(millis(300), 8)), 7.0));
        assert!(close(law.next(7.0, &Sample::new(millis(300), 7)), 7.0));
        assert!(close(law.next(7.0, &Sample::new(millis(30), 7)), grown(1.5)));
        assert!(close(law.next(limit, &sample(30)), grown(1.5)));
    });
}

/// A trend is followed upwards as long as the queue is short, and downwards when more in flight brings no more throughput.
#[test]
fn a_trend_that_brings_no_throughput_lowers_the_limit() {
    holds([1, 1], |inputs| {
        let step = inputs.one_of(&[1.0, 2.0]);
        let limit = if step == 1.0 { 20.0 } else { 150.0 };
        let (windows, full) = (10 + inputs.number(60, 20), inputs.below(2) == 1);
        let mut law = Trend::new().correlate_over(20);
        let mut last = limit;
        for window in 0..windows {
            // More in flight, and as much slower: the throughput stays.
            let used = if full {
                limit as u64 + window % 10
            } else {
                (limit * 0.6) as u64
            };
            last = law.next(
                limit,
                &Sample::new(Duration::from_secs_f64(used as f64 / 1_000.0), used),
            );
        }
        let saturated = full && windows >= 10;
        assert!(
            close(last, if saturated { limit - step } else { limit + step }),
            "{windows} {full}: {last}"
        );
        assert!(close(
            law.next(limit, &Sample::new(millis(1), 1).dropped()),
            limit - step
        ));
        assert!(close(
            law.next(limit, &Sample::new(millis(1), (limit * 0.4) as u64)),
            limit
        ));
        // A latency far above the average is a queue.
        assert!(close(
            law.next(limit, &Sample::new(Duration::from_secs(60), limit as u64 - 1)),
            limit - step
        ));
    });
}

/// Of any windows the average is the mean of the first ten and then forgets by its age, and the correlations are those of the textbook
/// over the latest ones. The limit goes as these say, where no threshold is near.
#[test]
fn a_trend_goes_by_its_average_and_its_correlations() {
    holds([1, 2], |inputs| {
        let (age, memory) = (1 + inputs.number(30, 1), 10 + inputs.number(10, 0) as usize);
        let mut law = Trend::new().average_over(age as u32).correlate_over(memory);
        let (limit, step) = inputs.one_of(&[(20.0, 1.0), (150.0, 2.0)]);
        let (mut average, mut all) = (0.0, Vec::<(f64, f64)>::new());
        // Twelve windows of a kind come before the others.
        let (kind, mut before) = (inputs.below(6), 12);
        while before > 0 || inputs.goes_on() {
            let (used, latency, dropped) = match before {
                0 => (
                    inputs.one_of(&[limit as u64, limit as u64 + 5, limit as u64 - 1, limit as u64 / 3])
                        + inputs.number(9, 0),
                    millis(1 + inputs.number(100, 3) * 40),
                    inputs.below(4) == 0,
                ),
                left => {
                    before -= 1;
                    let used = limit as u64 + [0, left, 12 - left, left % 3, 5 * left, 12 - left][kind as usize];
                    let latency = [
                        100,
                        100 + 9 * left,
                        100 + left * left,
                        100 + 40 * (left % 2),
                        100 + left % 4,
                        // More in flight brings a little more throughput, and more latency.
                        124 - 2 * left,
                    ][kind as usize];
                    (used, millis(latency), false)
                }
            };
            let mut sample = Sample::new(latency, used);
            sample.dropped = dropped;
            let next = law.next(limit, &sample);
            if dropped {
                assert_eq!(next, limit - step);
                continue;
            }
            let (latency, used) = (latency.as_secs_f64(), used as f64);
            all.push((used, latency));
            average = match all.len() {
                n @ 1..=10 => all.iter().map(|seen| seen.1).sum::<f64>() / n as f64,
                _ => average + (latency - average) * 2.0 / (age as f64 + 1.0),
            };
            let last = &all[all.len().saturating_sub(memory)..];
            let n = last.len() as f64;
            let mean = |of: &dyn Fn(&(f64, f64)) -> f64| last.iter().map(of).sum::<f64>() / n;
            let spread = |of: &dyn Fn(&(f64, f64)) -> f64| mean(&|seen| of(seen).powi(2)) - mean(of).powi(2);
            let (flow, time) = (|seen: &(f64, f64)| seen.0 / seen.1, |seen: &(f64, f64)| seen.1);
            let correlation = |of: &dyn Fn(&(f64, f64)) -> f64| {
                let both = mean(&|seen| seen.0 * of(seen)) - mean(&|seen| seen.0) * mean(of);
                both / (spread(&|seen| seen.0) * spread(of)).sqrt()
            };
            let varies = last.iter().any(|seen| seen.0 != last[0].0);
            let (throughput, latencies) = match varies {
                true => (correlation(&flow), correlation(&time)),
                false => (0.0, 0.0),
            };
            let variation = spread(&flow).max(0.0).sqrt() / mean(&flow);
            let is_saturated =
                last.len() >= 10 && (throughput < 0.0 || latencies > 0.5 && (throughput < 0.3 || variation < 0.2));
            let waits = limit * (1.0 - average / latency);
            let near = |one: f64, two: f64| (one - two).abs() < 1e-6;
            // A spread of nothing but rounding has no correlation.
            let is_rounding = varies && spread(&time).min(spread(&flow)) < 1e-9;
            if is_rounding
                || near(waits, waits.round())
                || varies && [0.0, 0.3].iter().any(|border| near(throughput, *border))
                || near(latencies, 0.5)
                || near(variation, 0.2)
            {
                continue;
            }
            let queue = waits.ceil();
            let wanted = match () {
                () if queue > 6.0 * step || used >= limit && is_saturated => limit - step,
                () if queue < 3.0 * step && used * 2.0 >= limit => limit + step,
                () => limit,
            };
            assert_eq!(
                next, wanted,
                "{last:?}: {queue} wait, {throughput} {latencies} {variation}"
            );
        }
    });
}

/// Of any windows since a drop, the limit is where the curve is half a window ahead; and an average comes down sooner than it forgets.
#[test]
fn curves_and_averages_go_by_all_that_was_seen() {
    holds([1, 2], |inputs| {
        let (backoff, scale, dropped_at) = (0.7, 0.4, 10.0 + limit(inputs));
        let mut cubic = Cubic::new().backoff(backoff).scale(scale);
        let back_after = (dropped_at * (1.0 - backoff) / scale).cbrt();
        let mut now = cubic.next(dropped_at, &Sample::new(millis(1), 1 << 40).dropped());
        let mut age = 0.0;
        let mut gradient = Gradient2::new().smoothing(0.5).tolerance(1.5).queue(4);
        let (mut average, mut seen) = (0.0, 0u32);
        for _ in 0..inputs.one_of(&[0, 9, 30]) {
            gradient.next(100.0, &Sample::new(millis(100), 100));
            (average, seen) = (0.1, seen + 1);
        }
        while inputs.goes_on() {
            let elapsed = 0.01 + inputs.number(100, 2) as f64 * back_after / 3.0;
            let next = cubic.next(
                now,
                &Sample::new(millis(1), 1 << 40).over(Duration::from_secs_f64(elapsed)),
            );
            age += elapsed;
            let curve = dropped_at + scale * (age + elapsed / 2.0 - back_after).powi(3);
            assert!(
                (next - curve.clamp(now, now * 1.5)).abs() <= 1e-6 * next,
                "{curve}: {now} to {next}"
            );
            now = next;

            let latency = inputs.one_of(&[0.1, 0.051, 0.049, 1.0]) + inputs.number(100, 0) as f64 * 1e-4;
            let (used, dropped) = (inputs.one_of(&[49, 100]), inputs.below(3) == 0);
            let mut sample = Sample::new(Duration::from_secs_f64(latency), used);
            sample.dropped = dropped;
            let next = gradient.next(100.0, &sample);
            seen += 1;
            let weight = if seen <= 10 { 1.0 / f64::from(seen) } else { 2.0 / 601.0 };
            average += (latency - average) * weight;
            let factor = (1.5 * average / latency).clamp(0.5, 1.0);
            let wanted = match (dropped, used) {
                (true, _) => 50.0 + 27.0,
                (false, 49) => 100.0,
                _ => 50.0 + (100.0 * factor + 4.0) * 0.5,
            };
            assert!(
                (next - wanted).abs() < 1e-6,
                "{next} for {wanted} of {latency}, {average}"
            );
            if average > 2.0 * latency {
                average *= 0.95;
            }
        }
    });
}

/// A window that has ended asks the law once, with what it drew. While the law is away the window goes on, and it is asked about when the
/// law is back. It is as new once what it learnt is too old to count, unless its limit is pinned.
#[test]
fn a_law_is_asked_once_about_each_window() {
    holds([2, 3], |inputs| {
        let clock = tollgate::ManualClock::new();
        let settings = Settings {
            floor: 1,
            ceiling: 100,
            window: inputs.one_of(&[1, 2, 10_000_000_000]) + inputs.number(1 << 30, 0),
            least: 1,
            percentile: 50.0,
            headroom: None,
            period: None,
        };
        let mut tuner = Tuner {
            sampler: Sampler::new(1_000, Instant::ZERO),
            law: Some(Box::new(Aimd::new())),
            limit: 7.5,
            pinned: None,
            learnt: None,
            drops: 0,
            raised: 0,
            lowered: 0,
        };
        let mut twin = tuner.sampler.clone();
        let (mut now, mut learnt, mut drops) = (0, None, 0);
        let mut away = None;
        while inputs.goes_on() {
            let question = match inputs.below(5) {
                0 | 1 => {
                    now += inputs.number(1 << 34, 3);
                    let ended = Ended {
                        started: Instant::from_ticks(now - inputs.number(now, 1).min(now)),
                        now: Instant::from_ticks(now - inputs.number(1, 1).min(now)),
                        dropped: inputs.below(2) == 0,
                        used: inputs.number(1 << 20, 1),
                    };
                    learnt = learnt.max(Some(ended.now));
                    twin.add(ended, &settings);
                    tuner.learn(&settings, clock.clock(), ended)
                }
                2 => tuner.question(&settings, clock.clock()),
                3 => {
                    tuner.law = away.take().or(tuner.law.take());
                    continue;
                }
                _ => {
                    tuner.pinned = [None, Some(3)][inputs.below(2) as usize];
                    let counts = (settings.window * 100).max(60_000_000_000);
                    let last = learnt.unwrap_or(Instant::ZERO).ticks();
                    for (later, is_old) in [(0, false), (counts, false), (counts + 1, true)] {
                        let at = Instant::from_ticks(last + later);
                        let wanted = tuner.pinned.is_none() && (is_old || learnt.is_none());
                        assert_eq!(
                            tuner.is_pristine(&settings, clock.clock(), at),
                            wanted,
                            "{later} after {last}"
                        );
                    }
                    assert_eq!(tuner.target(), tuner.pinned.unwrap_or(7));
                    continue;
                }
            };
            let drawn = learnt
                .filter(|_| away.is_none())
                .and_then(|now| twin.close(now, &settings));
            assert_eq!(question.is_some(), drawn.is_some());
            let (Some(question), Some(drawn)) = (question, drawn) else {
                continue;
            };
            drops += u64::from(drawn.dropped);
            assert_eq!((question.limit, tuner.drops), (7.5, drops));
            let sample = question.sample;
            assert_eq!(
                (sample.latency, sample.elapsed),
                (Duration::from_nanos(drawn.latency), Duration::from_nanos(drawn.elapsed))
            );
            assert_eq!((sample.in_flight, sample.dropped), (drawn.in_flight, drawn.dropped));
            away = Some(question.law);
        }
    });
}

/// A window that keeps few latencies draws from all that it saw, alike.
#[test]
fn few_latencies_are_a_sample_of_all() {
    holds([1, 1], |inputs| {
        let settings = Settings {
            floor: 1,
            ceiling: 100,
            window: 1,
            least: 1,
            percentile: inputs.one_of(&[0.0, 100.0]),
            headroom: None,
            period: None,
        };
        let (seen, windows) = (2 + inputs.number(60, 9), 400);
        let mut sampler = Sampler::new(1, Instant::ZERO);
        let mut sum = 0;
        for window in 0..windows {
            let started = Instant::from_ticks(window * 1_000);
            for latency in 1..=seen {
                let (now, dropped, used) = (later(started, latency), false, 1);
                sampler.add(
                    Ended {
                        started,
                        now,
                        dropped,
                        used,
                    },
                    &settings,
                );
            }
            let drawn = sampler.close(later(started, seen), &settings).expect("it is over");
            assert!((1..=seen).contains(&drawn.latency));
            sum += drawn.latency;
        }
        // Of a mean of 400 draws the standard deviation is at most 1.5 % of the range.
        let mean = (sum as f64 / windows as f64 - 1.0) / (seen - 1) as f64;
        assert!((0.4..0.6).contains(&mean), "{mean} of {seen}");
    });
}

/// A window ends when it is old and full enough, has the latency of its percentile, the most that was used, and whether any was dropped.
#[test]
fn a_window_is_drawn_when_it_is_old_and_full_enough() {
    holds([1, 2], |inputs| {
        let settings = Settings {
            floor: 1,
            ceiling: 100,
            window: 1 + inputs.number(1 << 30, 4),
            least: inputs.number(8, 2),
            percentile: inputs.one_of(&[0.0, 50.0, 100.0]),
            headroom: None,
            period: None,
        };
        let (mut sampler, mut now, mut since) = (Sampler::new(200, Instant::ZERO), 0u64, 0);
        let mut all = Vec::<(u64, u64, bool)>::new();
        while inputs.goes_on() {
            let (latency, used, dropped) = (
                inputs.number(1 << 30, 3),
                inputs.number(1 << 40, 2),
                inputs.below(4) == 0,
            );
            now += latency;
            let ended = Ended {
                started: Instant::from_ticks(now - latency),
                now: Instant::from_ticks(now),
                dropped,
                used,
            };
            sampler.add(ended, &settings);
            all.push((latency, used, dropped));
            let drawn = sampler.close(Instant::from_ticks(now), &settings);
            assert_eq!(
                drawn.is_some(),
                now - since >= settings.window && all.len() as u64 >= settings.least
            );
            if let Some(drawn) = drawn {
                all.sort_unstable();
                let rank = (settings.percentile / 100.0 * (all.len() - 1) as f64).round() as usize;
                assert_eq!((drawn.latency, drawn.elapsed), (all[rank].0, now - since));
                assert_eq!(drawn.in_flight, all.iter().map(|seen| seen.1).max().unwrap_or(0));
                assert_eq!(drawn.dropped, all.iter().any(|seen| seen.2));
                all.clear();
                since = now;
            }
        }
        let (factor, decay, floor) = (inputs.one_of(&[5.0, 1.5]), 1.0, 1.2);
        let headroom = Headroom { factor, decay, floor };
        let used = inputs.number(1 << 40, 100);
        let of = used.max(1) as f64;
        let most = (of * (factor - of.log10()).max(floor)).max(of + 1.0);
        assert!(close(headroom.limit(used), most));
    });
}

/// Given work of a rate that ends, with drops among it, then a window ends at its first drop, or after its length with as many ends as it
/// needs. Work that began within a window after such an end, and is dropped, lowers nothing, and begins the window anew.
#[test]
fn a_window_of_a_rate_ends_at_its_first_drop() {
    holds([1, 2], |inputs| {
        let period = 1 + inputs.number(1 << 30, 2);
        let settings = Settings {
            floor: 1,
            ceiling: 100,
            window: 1 + inputs.number(1 << 30, 3),
            least: inputs.number(4, 2),
            percentile: inputs.one_of(&[0.0, 50.0, 100.0]),
            headroom: None,
            period: Some(period),
        };
        let mut now = inputs.number(1 << 40, 1);
        let mut sampler = Sampler::new(1_000, Instant::from_ticks(now));
        let (mut since, mut recovered, mut ended) = (now, None, Vec::<(u64, u64)>::new());
        while inputs.goes_on() {
            now += inputs.number(1 << 31, 3);
            let latency = inputs.number(now, 2).min(now);
            let (used, dropped) = (inputs.number(1 << 20, 2), inputs.below(2) == 0);
            let work = Ended {
                started: Instant::from_ticks(now - latency),
                now: Instant::from_ticks(now),
                dropped,
                used,
            };
            sampler.add(work, &settings);
            let drawn = sampler.close(Instant::from_ticks(now), &settings);
            let is_late = dropped && recovered.is_some_and(|at| now - latency < at);
            if is_late {
                assert_eq!(drawn, None);
                (since, ended) = (now, Vec::new());
                continue;
            }
            ended.push((latency, used));
            let elapsed = now - since;
            let is_whole = elapsed >= settings.window && ended.len() as u64 >= settings.least.max(1);
            assert_eq!(drawn.is_some(), dropped || is_whole);
            let Some(drawn) = drawn else { continue };
            let mut latencies: Vec<_> = ended.iter().map(|(latency, _)| *latency).collect();
            latencies.sort_unstable();
            let last = latencies.len() - 1;
            let rank = (settings.percentile / 100.0 * last as f64).round() as usize;
            let units: u64 = ended.iter().map(|(_, used)| used).sum();
            let Drawn { latency, in_flight, .. } = drawn;
            assert_eq!(
                (latency, drawn.dropped, drawn.elapsed),
                (latencies[rank], dropped, elapsed)
            );
            match (u128::from(units) * u128::from(period)).checked_div(elapsed.into()) {
                Some(rate) => {
                    assert!(in_flight.abs_diff(u64::try_from(rate).unwrap_or(u64::MAX)) <= 1 + in_flight / (1 << 40));
                }
                None => assert_eq!(in_flight, if units == 0 { 0 } else { u64::MAX }),
            }
            if dropped {
                recovered = Some(now + settings.window);
            }
            (since, ended) = (now, Vec::new());
        }
    });
}

/// Whatever a law answers, the limit stays within its bounds, grows no further than the headroom of what is in use, and each change is
/// counted.
#[test]
fn an_answer_is_kept_within_bounds_and_headroom() {
    holds([2, 2], |inputs| {
        let floor = 1 + inputs.number(50, 2) as usize;
        let headroom = Headroom {
            factor: 2.0,
            decay: 0.3,
            floor: 1.25,
        };
        let settings = Settings {
            floor,
            ceiling: floor + inputs.number(1 << 20, 3) as usize,
            window: 1,
            least: 1,
            percentile: 50.0,
            headroom: (inputs.below(2) == 0).then_some(headroom),
            period: None,
        };
        let mut tuner = Tuner {
            sampler: Sampler::new(1, Instant::ZERO),
            law: None,
            limit: settings.floor as f64,
            pinned: None,
            learnt: None,
            drops: 0,
            raised: 0,
            lowered: 0,
        };
        while inputs.goes_on() {
            let (before, counts) = (tuner.limit, (tuner.raised, tuner.lowered));
            let next = match inputs.below(4) {
                0 => inputs.one_of(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0]),
                _ => inputs.number(1 << 21, 6) as f64 + 0.5,
            };
            let used = inputs.number(1 << 21, 4);
            tuner.answer(&settings, next, used);
            let (low, high) = (settings.floor as f64, settings.ceiling as f64);
            let wanted = match (next.is_finite(), &settings.headroom) {
                (false, _) => before,
                (true, Some(_)) if next > before => next.min(before.max(headroom.limit(used))),
                (true, _) => next,
            };
            assert_eq!(tuner.limit, wanted.clamp(low, high));
            let raised = counts.0 + u64::from(tuner.limit > before);
            assert_eq!(
                (tuner.raised, tuner.lowered),
                (raised, counts.1 + u64::from(tuner.limit < before))
            );
            assert_eq!(tuner.target(), tuner.limit as usize);
        }
    });
}
