//! The error of every verb works with `?` in a function that returns a boxed error, and is found in it.

use std::error::Error;
use tollgate::Semaphore;
use tollgate_resilience::adaptive::{Adaptive, AdaptiveError, Aimd};

type Ended = Result<(), Box<dyn Error + Send + Sync>>;

/// True if the error or one of its sources is an `E`.
fn holds<E: Error + Send + Sync + 'static>(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (**error).source()).any(|error| error.is::<E>())
}

type Found = fn(&(dyn Error + 'static)) -> bool;

fn call(verb: &str) -> Ended {
    match verb {
        "Adaptive::builder" => drop(
            Adaptive::builder(Semaphore::new(1))
                .law(Aimd::new())
                .bounds(2, 1)
                .build()?,
        ),
        other => panic!("{other} is not called"),
    }
    Ok(())
}

#[test]
fn the_question_mark_boxes_the_error_of_every_verb() {
    let verbs: [(&str, Found); 1] = [("Adaptive::builder", holds::<AdaptiveError>)];
    for (verb, found) in verbs {
        let error = call(verb).expect_err(verb);
        assert!(found(&*error), "{verb}: {error:?}");
    }
}
