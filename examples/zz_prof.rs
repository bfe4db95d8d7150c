use std::{pin::Pin,task::{Context,Poll,Waker}};
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> { future.poll(&mut Context::from_waker(Waker::noop())) }
fn main(){
    let what=std::env::args().nth(1).unwrap();
    let n: usize=std::env::args().nth(2).unwrap().parse().unwrap();
    let rounds: usize=std::env::args().nth(3).unwrap().parse().unwrap();
    macro_rules! drain{($s:expr)=>{{
        for _ in 0..rounds { let s=$s; let mut held=match poll_once(Box::pin(s.acquire()).as_mut()){Poll::Ready(p)=>Some(p),_=>panic!()};
        let mut q: Vec<_>=(0..n).map(|_|Box::pin(s.acquire())).collect();
        for w in &mut q { assert!(poll_once(w.as_mut()).is_pending()); }
        for w in &mut q { drop(held.take()); match poll_once(w.as_mut()){Poll::Ready(p)=>held=Some(p),_=>unreachable!()} }
        }
    }}}
    macro_rules! cancel{($s:expr)=>{{ let s=$s;
        for _ in 0..rounds*n { let w=std::pin::pin!(s.acquire()); assert!(poll_once(w).is_pending()); }
    }}}
    match &*what { "drain"=>drain!(tollgate::Semaphore::new(1)), "tdrain"=>drain!(tokio::sync::Semaphore::new(1)),
      "cancel"=>cancel!(tollgate::Semaphore::new(0)), "acq"=>{let s=tollgate::Semaphore::new(5); let t=std::time::Instant::now(); acq_loop(&s,n*rounds); println!("{:?}",t.elapsed()/(n*rounds) as u32);}
 "tcancel"=>cancel!(tokio::sync::Semaphore::new(0)), _=>panic!() }
}
#[inline(never)]
pub fn acq_loop(s:&tollgate::Semaphore, n:usize){ for _ in 0..n { std::hint::black_box(ready(s.acquire()).is_ok()); } }
#[inline]
pub fn ready<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match poll_once(future.as_mut()) { Poll::Ready(output) => output, Poll::Pending => unreachable!() }
}
