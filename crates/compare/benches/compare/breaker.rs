//! The circuit breaker beside recloser and failsafe: one call that is let through and succeeds, or fails, or is refused.
//!
//! All judge the last 100 calls but failsafe, which judges failures in a row: that is what it has. Neither has a window of
//! time, or looks how long calls take. Those rows are beside the same calls, and beside recloser with as many readings of
//! the clock as such a window needs: one when a call ends, and one more when it begins for slow calls.

use crate::harness::{Rows, each};
use failsafe::{CircuitBreaker as _, backoff, failure_policy};
use recloser::Recloser;
use std::hint::black_box;
use std::time::Duration;
use tollgate::{Ask, Clock, LimiterExt, Outcome};
use tollgate_resilience::{CircuitBreaker, OpenTime};

fn ours() -> CircuitBreaker {
    let builder = CircuitBreaker::builder().count_window(100).minimum_calls(100);
    let forever = OpenTime::fixed(Duration::from_secs(86_400));
    builder.open_for(forever).build().expect("a breaker")
}

fn recloser() -> Recloser {
    let builder = Recloser::custom().error_rate(0.5).closed_len(100).half_open_len(10);
    builder.open_wait(Duration::from_secs(86_400)).build()
}

fn failsafe() -> impl failsafe::CircuitBreaker {
    let wait = backoff::constant(Duration::from_secs(86_400));
    failsafe::Config::new()
        .failure_policy(failure_policy::consecutive_failures(10, wait))
        .build()
}

fn admit(breaker: &CircuitBreaker, outcome: Outcome) -> bool {
    breaker
        .try_admit(Ask::one())
        .map(|permit| permit.finish(outcome))
        .is_ok()
}

pub(crate) fn rows(rows: &Rows) {
    let breaker = ours();
    let (re, fail) = (recloser(), failsafe());
    let succeed = || Ok::<(), ()>(());
    rows.wall(
        "breaker/success",
        vec![
            each!("tollgate", admit(&breaker, Outcome::Success)),
            each!("recloser", re.call(succeed).is_ok()),
            each!("failsafe", fail.call(succeed).is_ok()),
        ],
    );

    let clock = Clock::real();
    let timed = || {
        CircuitBreaker::builder()
            .time_window(Duration::from_secs(10))
            .on(&clock)
    };
    let windows = [
        ("breaker/time-window", timed(), 1),
        ("breaker/slow-calls", timed().slow_calls(Duration::from_secs(1), 0.5), 2),
    ];
    for (name, builder, readings) in windows {
        let breaker = builder.build().expect("a breaker");
        let read = || (0..readings).for_each(|_| _ = black_box(clock.now()));
        rows.wall(
            name,
            vec![
                each!("tollgate", admit(&breaker, Outcome::Success)),
                each!("recloser", re.call(succeed).is_ok()),
                each!("failsafe", fail.call(succeed).is_ok()),
                each!("recloser+clock", re.call(succeed).map(|()| read()).is_ok()),
            ],
        );
    }

    // One failure in nine, so that failures do not push out failures.
    let (breaker, re, fail) = (ours(), recloser(), failsafe());
    let mut turns = [0u32; 3];
    let [one, two, three] = &mut turns;
    let is_ninth = |turn: &mut u32| {
        *turn = (*turn + 1) % 9;
        *turn == 0
    };
    let result = |bad: bool| if bad { Err(()) } else { Ok(()) };
    let outcome = |bad: bool| if bad { Outcome::Failure } else { Outcome::Success };
    rows.wall(
        "breaker/one-in-nine-fails",
        vec![
            each!("tollgate", admit(&breaker, outcome(is_ninth(one)))),
            each!("recloser", re.call(|| result(is_ninth(two))).is_ok()),
            each!("failsafe", fail.call(|| result(is_ninth(three))).is_ok()),
        ],
    );

    let (breaker, re, fail) = (ours(), recloser(), failsafe());
    for _ in 0..200 {
        let _ = (
            admit(&breaker, Outcome::Failure),
            re.call(|| result(true)),
            fail.call(|| result(true)),
        );
    }
    assert!(!admit(&breaker, Outcome::Success) && re.call(succeed).is_err() && fail.call(succeed).is_err());
    rows.wall(
        "breaker/refuse",
        vec![
            each!("tollgate", admit(&breaker, Outcome::Success)),
            each!("recloser", re.call(succeed).is_ok()),
            each!("failsafe", fail.call(succeed).is_ok()),
        ],
    );
}
