//! Random programs on a policy of several legs, beside the reference of `fuzz/targets/policy.rs`.

use proptest::prelude::*;

#[path = "../../../fuzz/targets/policy.rs"]
mod program;

use program::{Op, run};

proptest! {
    #![proptest_config(crate::cases(400))]

    /// Given a policy that waits, is reloaded, and whose permits end in any way, then each waiter is admitted in its turn, when each leg by
    /// itself would admit it; each leg has left what it would have by itself; and no waiter sleeps on.
    #[test]
    fn a_policy_admits_in_order_what_all_of_its_legs_admit(kinds: [u8; 2], ops in crate::ops(0..100, Op::decode)) {
        run(kinds, ops);
    }
}
