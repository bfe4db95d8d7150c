//! A fan-out whose items are admitted by limiters that learn how they ended.

use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::fan_out::fan_out;
use tollgate::{Ask, ManualClock, Outcome, Policy, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd};

/// Given a limit that learns, then it learns from what the classifier says of each output, and a classifier that panics says
/// nothing.
#[tokio::test]
async fn a_classifier_says_how_the_permits_end() {
    let clock = ManualClock::new();
    let builder = Adaptive::builder(Semaphore::new(10)).law(Aimd::new());
    let limit = Arc::new(builder.window(Duration::ZERO, 1).on(&clock).build().unwrap());
    let policy = Policy::new(Arc::clone(&limit));
    let results = fan_out([429, 200, 0, 429], 1)
        .admit_each(1, move |_| (policy.clone(), Ask::one()))
        .map_classified(
            |status| async move { status },
            |status| match status {
                0 => panic!("no status"),
                429 => Outcome::Overload,
                _ => Outcome::Success,
            },
        );
    let results: Vec<_> = results.map(Result::unwrap).collect().await;
    assert_eq!(results, [429, 200, 0, 429]);
    assert_eq!(
        (limit.stats().drops, limit.limit(), limit.limiter().in_use()),
        (2, 8, 0)
    );
}
