//! Locks for data that stays consistent even if a thread panics while it holds the lock.

/// Locks the mutex and ignores poisoning.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
