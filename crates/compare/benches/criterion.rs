//! The curves: a semaphore by its waiters, a bucket by its threads' work, a policy by its legs.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate::{Ask, Legs, LimiterExt, Policy, Quota, Semaphore, TokenBucket};

fn semaphore(c: &mut Criterion) {
    let semaphore = Semaphore::new(64);
    let mut group = c.benchmark_group("semaphore");
    for permits in [1, 8, 64] {
        group.bench_with_input(
            BenchmarkId::new("try_acquire_many", permits),
            &permits,
            |b, &permits| {
                b.iter(|| black_box(semaphore.try_acquire_many(permits)).is_ok());
            },
        );
    }
    group.bench_function("try_admit", |b| {
        b.iter(|| black_box(semaphore.try_admit(Ask::one())).is_ok());
    });
    group.finish();
}

fn token_bucket(c: &mut Criterion) {
    let mut group = c.benchmark_group("token_bucket");
    let bucket = TokenBucket::new(Quota::per_second(1_000_000_000));
    group.bench_function("admit", |b| b.iter(|| black_box(bucket.try_acquire(1)).is_ok()));
    let empty = TokenBucket::new(Quota::per_hour(1));
    assert!(empty.try_acquire(1).is_ok());
    group.bench_function("refuse", |b| b.iter(|| black_box(empty.try_acquire(1)).is_err()));
    group.bench_function("refuse_and_retry_after", |b| {
        b.iter(|| black_box(empty.try_acquire(1)).map_err(|refusal| refusal.retry_after()));
    });
    group.finish();
}

fn policy(c: &mut Criterion) {
    let mut group = c.benchmark_group("policy");
    for legs in [1, 2, 4, 6] {
        let bucket = || TokenBucket::new(Quota::per_second(1_000_000_000));
        let policy = Policy::new((0..legs).fold(Legs::new(), |all, _| all.and(bucket())));
        group.bench_with_input(BenchmarkId::new("try_admit", legs), &legs, |b, _| {
            b.iter(|| policy.try_admit(black_box(Ask::one())).is_ok());
        });
    }
    group.finish();
}

criterion_group!(benches, semaphore, token_bucket, policy);
criterion_main!(benches);
