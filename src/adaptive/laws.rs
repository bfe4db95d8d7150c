//! The laws of the laws: where a limit goes for what is seen.

use super::aimd::Aimd;
use super::cubic::Cubic;
use super::gradient::Gradient;
use super::gradient2::Gradient2;
use super::law::{LimitLaw, Sample};
use super::trend::Trend;
use super::tuner::{Drawn, Ended, Headroom, Sampler, Settings, Tuner};
use super::vegas::Vegas;
use crate::laws::{Inputs, holds};
use crate::time::Instant;
use std::time::Duration;

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
        let headroom = Headroom {
            factor: 5.0,
            decay: 1.0,
            floor: 1.2,
        };
        let used = inputs.number(1 << 40, 100);
        let (most, of) = (headroom.limit(used), used.max(1) as f64);
        assert!(most >= of + 1.0 && most <= (of * 5.0).max(of + 1.0) && most >= of * 1.2 - 1e-6);
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
