//! Random programs on semaphores, beside the reference of `fuzz/targets/semaphore.rs`.

use proptest::prelude::*;

#[path = "../../../fuzz/targets/semaphore.rs"]
mod program;

use program::{Kind, Op, run};

proptest! {
    #![proptest_config(crate::cases(1_000))]

    /// Given any program, then both see the same after every step.
    /// Keeps out futures-intrusive#61.
    #[test]
    fn any_program_agrees_with_the_reference(
        kind in any::<[u8; 4]>().prop_map(Kind::decode), ops in crate::ops(0..100, Op::decode),
    ) {
        run(&kind, ops);
    }
}
