//! The laws of the machines that shed.

use super::drop_probability::throttle_probability;
use super::retry_budget::Reserve;
use super::throttler::ThrottleState;
use crate::laws::holds;
use crate::rng::Rng;

/// Given any reservations, deposits and cancels in any order, then the reserve holds as much as if the cancelled ones had never been
/// reserved. Of more than 64 reservations it holds no more than that.
#[test]
fn a_cancel_leaves_what_would_be_held_without_the_reservation() {
    holds([5, 6], |inputs| {
        let size = inputs.number(1 << 62, 3);
        let mut reserve = Reserve::new(size);
        // What was reserved, or with a minus sign deposited.
        let (mut history, mut made, mut reserved) = (Vec::<i128>::new(), Vec::new(), 0);
        for _ in 0..inputs.number(5, 0) * 16 {
            if let Some(number) = reserve.take(1) {
                made.push((number, 1, history.len()));
                history.push(1);
                reserved += 1;
            }
        }
        if reserved == 64 {
            // The oldest are told apart, whatever was reserved of nothing.
            assert!(reserve.take(0).is_some());
            for _ in 0..2 {
                let held = reserve.held();
                let (number, n, at) = made.remove(inputs.below(2) as usize);
                reserve.give_back(number, n);
                history[at] = 0;
                assert_eq!(reserve.held(), held + n);
            }
        }
        while inputs.goes_on() {
            let held = reserve.held();
            match inputs.below(3) {
                0 => {
                    let n = inputs.number(size, 2);
                    let taken = reserve.take(n);
                    assert_eq!(taken.is_some(), n <= held);
                    if let Some(number) = taken {
                        made.push((number, n, history.len()));
                        history.push(n.into());
                        reserved += u32::from(n > 0);
                    }
                }
                1 => {
                    let n = inputs.number(1 << 62, 2);
                    reserve.add(n);
                    history.push(-i128::from(n));
                }
                _ if !made.is_empty() => {
                    let (number, n, at) = made.remove(inputs.below(made.len() as u64) as usize);
                    reserve.give_back(number, n);
                    history[at] = 0;
                    assert!(reserve.held() <= held + n);
                }
                _ => {}
            }
            let missing = history
                .iter()
                .fold(0, |missing: i128, change| (missing + change).max(0));
            let (held, exact) = (i128::from(reserve.held()), i128::from(size) - missing);
            assert!(held == exact || (held < exact && reserved > 64), "{held} for {exact}");
            assert_eq!(reserve.size(), size);
        }
    });
}

/// The last ten segments are counted, and one that comes late counts in a later one.
#[test]
fn a_throttler_counts_the_last_segments() {
    holds([3, 4], |inputs| {
        let (mut state, mut newest) = (ThrottleState::new(Rng::new(0)), 1 + inputs.number(1 << 60, 0));
        let mut all = Vec::<(u64, u64, u64)>::new();
        while inputs.goes_on() {
            let ahead = inputs.number(30, 10);
            newest += ahead;
            let of = newest.saturating_sub(inputs.number(20, 0)).max(1);
            let (asked, accepted) = (inputs.number(1 << 30, 1), inputs.number(1 << 30, 1));
            let segment = state.segment(of);
            let number = segment.number;
            assert!(number == of || (number > of && number <= newest && (number - of) % 10 == 0));
            segment.asked += asked;
            segment.accepted += accepted;
            all.push((number, asked, accepted));
            let last = all.iter().filter(|(number, ..)| number + 10 > newest);
            let sum = last.fold((0, 0), |sum, (_, asked, accepted)| (sum.0 + asked, sum.1 + accepted));
            assert_eq!(state.totals(newest), sum);
        }
    });
}

/// Nothing is dropped as long as the accepted share is the expected one; then more with each refusal, up to the most.
#[test]
fn a_drop_probability_grows_with_refusals() {
    holds([1, 1], |inputs| {
        let asked = inputs.number(1 << 40, 20);
        let accepted = inputs.number(asked, 20);
        let (rate, most) = (inputs.one_of(&[0.5, 1.0]), inputs.one_of(&[0.0, 0.9]));
        let drop = |accepted: u64| throttle_probability(asked as f64, accepted as f64, rate, most);
        let found = drop(accepted);
        assert!((0.0..=most).contains(&found) && found <= drop(accepted / 2));
        let due = asked as f64 - accepted as f64 / rate;
        assert_eq!(found > 0.0, due > 0.0 && most > 0.0);
        assert!(most == 0.0 || found == most || (found * (asked as f64 + 1.0) - due.max(0.0)).abs() < 1e-3);
        assert!(found < most || most == 0.0 || due / (asked as f64 + 1.0) >= most - 1e-12);
    });
}
