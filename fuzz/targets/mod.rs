//! The targets: each runs any input. A program of operations has a head of four bytes, which selects what it runs on, and three bytes for
//! each operation.

mod fixed_window;
mod keyed;
mod ledger;
mod policy;
mod pool;
mod queue;
mod semaphore;
mod text;
mod verbs;
mod windows;

use crate::pool::kinds::Kind;
use ledger::Step;
use std::sync::LazyLock;

/// Runs an input, and panics when a promise is broken.
pub(crate) type Target = fn(&[u8]);

/// By their names, which are those of the folders of `fuzz/corpus`.
pub(crate) const TARGETS: [(&str, Target); 8] = [
    ("quota", text::quota),
    ("policy_file", text::policy_file),
    ("semaphore", |input| {
        let (head, ops) = program(input, semaphore::Op::decode);
        semaphore::run(&semaphore::Kind::decode(head), ops);
    }),
    ("bucket", bucket),
    ("window", window),
    ("policy", |input| {
        let (head, ops) = program(input, policy::Op::decode);
        match head[0] % 4 {
            0..3 => policy::run([head[1], head[2]], ops),
            _ => {
                let bounds = queue::Bounds::decode([head[1], head[2]]);
                let numbers = head[0] / 4;
                queue::run(
                    bounds,
                    u64::from(5 + numbers % 4),
                    u64::from(1 + numbers / 4 % 3),
                    program(input, queue::Step::decode).1,
                );
            }
        }
    }),
    ("pool", |input| {
        let (head, mut ops) = program(input, pool::Op::decode);
        ops.truncate(60);
        let gate = [pool::Gate::None, pool::Gate::Permits, pool::Gate::Rate][usize::from(head[0] / 2 % 3)];
        pool::run(Kind::Tasks, gate, usize::from(1 + head[0] % 2), ops);
    }),
    ("keyed", keyed),
];

/// Operations beyond these are not run: a reference takes time by the square of them.
const MOST: usize = 200;

/// Programs are printed.
static SHOW: LazyLock<bool> = LazyLock::new(|| std::env::var_os("TOLLGATE_FUZZ_SHOW").is_some());

fn program<T: std::fmt::Debug>(input: &[u8], decode: fn([u8; 3]) -> T) -> ([u8; 4], Vec<T>) {
    let mut head = [0; 4];
    let (first, rest) = input.split_at(input.len().min(4));
    head[..first.len()].copy_from_slice(first);
    let ops = rest.chunks_exact(3).take(MOST);
    let ops: Vec<_> = ops.map(|op| decode([op[0], op[1], op[2]])).collect();
    if *SHOW {
        println!("{head:?} {ops:#?}");
    }
    (head, ops)
}

fn ledger(input: &[u8], single: bool, check: impl Fn(&[Step])) {
    let (_, mut steps) = program(input, Step::decode);
    if single {
        steps = steps.into_iter().map(Step::single).collect();
    }
    check(&steps);
}

/// Buckets, leaky ones and those that stand on them.
fn bucket(input: &[u8]) {
    let (head, ops) = program(input, verbs::Op::decode);
    let [a, b, c] = [1, 2, 3].map(|at| u64::from(head[at]));
    match head[0] % 14 {
        by @ 0..5 => verbs::run(1 + a % 59, 1 + b % 89, 1 + c % 11, by % 2 == 0, ops),
        5 | 11 => ledger(input, false, ledger::token_bucket),
        6 => ledger(input, false, ledger::bucket_by_interval),
        7 => ledger(input, false, ledger::leaky_bucket),
        8 => ledger(input, true, ledger::leaky_bucket_without_slack),
        9 => ledger(input, true, ledger::bucket_with_a_burst_of_one),
        10 => ledger(input, false, ledger::warm_up),
        _ => ledger(input, false, ledger::share_of_a_budget),
    }
}

/// Fixed and sliding windows, and logs.
fn window(input: &[u8]) {
    let (head, ops) = program(input, fixed_window::Op::decode);
    let [limit, length] = [1, 2].map(|at| u64::from(head[at]));
    match head[0] % 8 {
        0 => fixed_window::counts(limit % 12, ops),
        1..3 => fixed_window::changes(
            1 + limit % 8,
            1 + length % 89,
            program(input, fixed_window::Change::decode).1,
        ),
        3 => windows::sliding_window(limit % 12, program(input, windows::Op::decode).1),
        4 => windows::log(limit % 12, program(input, windows::Op::decode).1),
        5 => ledger(input, false, ledger::sliding_window),
        6 => ledger(input, false, ledger::sliding_log),
        _ => ledger(input, false, ledger::fixed_window),
    }
}

/// Maps by key.
fn keyed(input: &[u8]) {
    let (head, ops) = program(input, keyed::Op::decode);
    let [a, b, c] = [1, 2, 3].map(|at| u64::from(head[at]));
    match head[0] % 8 {
        0..4 => keyed::run((a % 12) as usize, b & 1 > 0, b & 2 > 0, ops),
        4 => {
            let (count, max) = (1 + a * a * a % 1_000_000, 3 + usize::from(head[3] % 4));
            keyed::rate(
                count,
                1 + b * b,
                1 + c / 4 % 9,
                max,
                program(input, keyed::Ask::decode).1,
            );
        }
        5 => ledger(input, false, ledger::key_that_comes_back),
        6 => ledger(input, false, ledger::key_of_any_limiter),
        _ => ledger(input, false, ledger::rate_by_key),
    }
}
