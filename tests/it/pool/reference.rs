//! Random programs of operations on a pool, of threads or of async tasks, beside the reference of `fuzz/targets/pool.rs`.

use crate::pool::kinds::Kind;
use proptest::prelude::*;

#[path = "../../../fuzz/targets/pool.rs"]
mod program;

use program::{Gate, Op, run};

proptest! {
    #![proptest_config(crate::cases(60))]

    #[test]
    fn threads_do_what_the_reference_does(limit in 1..3usize, ops in crate::ops(0..40, Op::decode)) {
        run(Kind::Threads, Gate::None, limit, ops);
    }

    #[test]
    fn async_tasks_do_what_the_reference_does(
        limit in 1..3usize, gate in prop::sample::select(vec![Gate::None, Gate::Permits, Gate::Rate]), ops in crate::ops(0..40, Op::decode),
    ) {
        run(Kind::Tasks, gate, limit, ops);
    }
}
