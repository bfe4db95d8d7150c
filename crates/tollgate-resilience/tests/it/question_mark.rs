//! The error of every verb works with `?` in a function that returns a boxed error, and is found in it.

use std::error::Error;
use std::time::Duration;
use tollgate::{LimiterExt, Refusal, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, AdaptiveError, Aimd};
use tollgate_resilience::shed::{RetryBudget, ShedError, Throttler};
use tollgate_resilience::{BreakerError, CircuitBreaker};

type Ended = Result<(), Box<dyn Error + Send + Sync>>;

/// True if the error or one of its sources is an `E`.
fn holds<E: Error + Send + Sync + 'static>(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (**error).source()).any(|error| error.is::<E>())
}

type Found = fn(&(dyn Error + 'static)) -> bool;

fn call(verb: &str) -> Ended {
    match verb {
        "CircuitBreaker" => {
            let breaker = CircuitBreaker::new();
            breaker.force_open();
            breaker.try_admit(1)?.forget();
        }
        "CircuitBreaker::builder" => drop(CircuitBreaker::builder().probes(0).build()?),
        "Adaptive::builder" => drop(
            Adaptive::builder(Semaphore::new(1))
                .law(Aimd::new())
                .bounds(2, 1)
                .build()?,
        ),
        "RetryBudget::new" => drop(RetryBudget::new(-1.0, 1)?),
        "Throttler::new" => drop(Throttler::new(2.0, 0.9, Duration::ZERO)?),
        other => panic!("{other} is not called"),
    }
    Ok(())
}

#[test]
fn the_question_mark_boxes_the_error_of_every_verb() {
    let verbs: [(&str, Found); 5] = [
        ("CircuitBreaker", holds::<Refusal>),
        ("CircuitBreaker::builder", holds::<BreakerError>),
        ("Adaptive::builder", holds::<AdaptiveError>),
        ("RetryBudget::new", holds::<ShedError>),
        ("Throttler::new", holds::<ShedError>),
    ];
    for (verb, found) in verbs {
        let error = call(verb).expect_err(verb);
        assert!(found(&*error), "{verb}: {error:?}");
    }
}
