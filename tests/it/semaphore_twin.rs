//! One source compiled twice, with tokio's semaphore and with ours: both must run the same.

use proptest::prelude::*;

mod on_tokio {
    use tokio::sync as under_test;
    include!("twin/program.rs");
}

mod on_tollgate {
    use tollgate as under_test;
    include!("twin/program.rs");
}

#[test]
fn every_method_says_the_same() {
    let (theirs, ours) = (on_tokio::tour(), on_tollgate::tour());
    for (theirs, ours) in theirs.iter().zip(&ours) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn any_program_runs_the_same(permits in 0usize..6, operations in prop::collection::vec((0u8..6, 0u32..5), 1..40)) {
        prop_assert_eq!(on_tollgate::run(permits, &operations), on_tokio::run(permits, &operations));
    }

    #[test]
    fn any_program_that_closes_runs_the_same(
        permits in 0usize..4, operations in prop::collection::vec((0u8..7, 0u32..4), 1..25),
    ) {
        prop_assert_eq!(on_tollgate::run(permits, &operations), on_tokio::run(permits, &operations));
    }
}
