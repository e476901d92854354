//! Concurrent tasks that begin at the same moment.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Barrier;

/// Runs `count` tasks which all start once the last of them is ready; their results are in the order of their numbers.
pub async fn together<T, F>(count: usize, mut task: impl FnMut(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(Barrier::new(count));
    let running: Vec<_> = (0..count)
        .map(|number| {
            let (start, work) = (start.clone(), task(number));
            tokio::spawn(async move {
                start.wait().await;
                work.await
            })
        })
        .collect();
    let mut results = Vec::with_capacity(count);
    for one in running {
        match one.await {
            Ok(result) => results.push(result),
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        }
    }
    results
}
