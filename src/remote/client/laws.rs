//! The laws of a share of a leased rate, over the whole domain; the model of several shares is in `crates/proofs`.

use super::share::{Share, UNITS};
use crate::laws::holds;
use crate::remote::model::Fill;

/// A bucket whose capacity and refill are its units' part of the whole: in parts of a token, and of a unit.
#[test]
fn a_share_is_a_bucket_of_its_units() {
    holds([1, 2], |inputs| {
        let most = Fill::EXACT / 8 - 1;
        let (price, gain) = (1 + inputs.number(1 << 24, 1), 1 + inputs.number(most - 1, 1));
        let brim = price * (1 + inputs.number(1 << 20, 1));
        let fill = Fill {
            price,
            gain,
            brim: brim.min(most / price * price),
        };
        let parts = |tokens: u64| u128::from(tokens) * u128::from(price) * u128::from(UNITS);
        // While tokens are lent a 64th of the burst flows in at most.
        let flows = |micros: u64| u128::from(micros) * 64 * u128::from(gain);
        let lent = Share::new(fill, 0).loan_length();
        assert!(
            flows(lent) <= fill.brim.into() && flows(lent + 1) > fill.brim.into(),
            "{lent}"
        );
        let (mut now, mut units) = (inputs.number(1 << 50, 0), 0u64);
        let mut share = Share::new(fill, now);
        // The level less the debt.
        let mut level = 0i128;
        let mut taken = Vec::<(u64, u64)>::new();
        while inputs.goes_on() {
            let capacity = |units: u64| i128::from(units) * i128::from(fill.brim);
            match inputs.below(8) {
                0 => {
                    let micros = inputs.number(1 << 30, 3);
                    now += micros;
                    level = (level + i128::from(micros) * i128::from(gain) * i128::from(units)).min(capacity(units));
                }
                1 => {
                    let more = inputs.one_of(&[UNITS / 2, 1, UNITS]).min(UNITS - units);
                    share.receive(more, now);
                    units += more;
                }
                2 => {
                    let less = inputs.one_of(&[UNITS / 2, 1]).min(units);
                    share.give(less, now);
                    units -= less;
                    level = level.min(capacity(units));
                }
                3 => {
                    share.lapse(now);
                    units = 0;
                    level = level.min(0);
                }
                4 | 5 => {
                    // Within what is there, or a debt.
                    let n = if inputs.below(4) == 0 {
                        inputs.number(1 << 20, 2)
                    } else {
                        inputs.number(share.tokens(now), 2)
                    };
                    share.take(n, now);
                    level -= parts(n) as i128;
                    taken.push((n, now));
                }
                6 => {
                    // Tokens are lent, and spent at an instant of that time.
                    let (n, length) = (inputs.number(share.tokens(now), 2), inputs.number(1 << 20, 3));
                    share.take(0, now);
                    let (passed, first) = (inputs.number(1 << 21, 3), inputs.number(length, 2));
                    share.spend_lent(n, now + length);
                    now += passed;
                    let flow = |micros: u64| i128::from(micros) * i128::from(gain) * i128::from(units);
                    let spent_after = |micros: u64| {
                        let level = (level + flow(micros)).min(capacity(units)) - parts(n) as i128;
                        (level + flow(passed - micros)).min(capacity(units))
                    };
                    let (exact, least) = (spent_after(first.min(passed)), spent_after(length.min(passed)));
                    let lost = if n == 0 { 0 } else { exact - least };
                    assert!(
                        (0..=flow(length)).contains(&lost),
                        "no more than was spent, and little less"
                    );
                    level = if n == 0 { spent_after(0) } else { least };
                    // Until the next change the loan is spent by a later instant, as time passes.
                    let there = least.max(0) as u128 / parts(1);
                    assert!(n == 0 || u128::from(share.tokens(now)) == there, "at {now}");
                    share.take(0, now);
                    taken.push((n, now));
                }
                _ if !taken.is_empty() => {
                    let (n, at) = taken.remove(inputs.below(taken.len() as u64) as usize);
                    share.refund(n, n, at, now);
                    // At most what has not been refilled since, at the rate of the whole.
                    let refilled = u128::from(now - at) * u128::from(gain) * u128::from(UNITS);
                    level = (level + parts(n).saturating_sub(refilled) as i128).min(capacity(units));
                }
                _ => {}
            }
            let there = level.max(0) as u128 / parts(1);
            assert_eq!(
                (u128::from(share.tokens(now)), share.in_debt(now)),
                (there, level < 0),
                "at {now}"
            );
            assert!(
                there * u128::from(price) <= u128::from(fill.brim),
                "never more than the burst"
            );
            for n in [1, 2, inputs.number(1 << 22, 3)] {
                let n = n.max(1);
                match share.wait(n, now) {
                    Some(wait) => {
                        let flow = i128::from(gain) * i128::from(units);
                        let at = |wait: u64| (level + i128::from(wait) * flow).min(capacity(units));
                        assert!(at(wait) >= parts(n) as i128 && (wait == 0 || at(wait - 1) < parts(n) as i128));
                    }
                    None => assert!(units == 0 || parts(n) as i128 > capacity(units)),
                }
                // The units that hold `n`, and no fewer; and those that gain them in time.
                let needs = share.units_for(n);
                let holds = |units: u64| u128::from(units) * u128::from(fill.brim) >= parts(n);
                assert!(
                    (1..=UNITS).contains(&needs)
                        && (needs == UNITS || holds(needs))
                        && (needs == 1 || !holds(needs - 1))
                );
                let micros = 1 + inputs.number(1 << 30, 2);
                let needs = share.units_to_gain(n, micros);
                let gains = |units: u64| u128::from(micros) * u128::from(gain) * u128::from(units) >= parts(n);
                assert!(needs <= UNITS && (needs == UNITS || gains(needs)) && (needs == 0 || !gains(needs - 1)));
            }
        }
    });
}
