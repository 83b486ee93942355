#ifndef LAB_PTHREAD_H
#define LAB_PTHREAD_H
#include <time.h>
/* There is one thread: locks are always free, and no thread can be started. */
typedef int pthread_mutex_t, pthread_cond_t, pthread_mutexattr_t, pthread_condattr_t;
typedef int pthread_attr_t, pthread_t;
#define PTHREAD_MUTEX_INITIALIZER 0
#define PTHREAD_COND_INITIALIZER 0
static inline int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *how) { return 0; }
static inline int pthread_mutex_destroy(pthread_mutex_t *mutex) { return 0; }
static inline int pthread_mutex_lock(pthread_mutex_t *mutex) { return 0; }
static inline int pthread_mutex_unlock(pthread_mutex_t *mutex) { return 0; }
static inline int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *how) { return 0; }
static inline int pthread_cond_destroy(pthread_cond_t *condition) { return 0; }
static inline int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) { return 0; }
static inline int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                         const struct timespec *until) { return 60; }
static inline int pthread_cond_signal(pthread_cond_t *condition) { return 0; }
static inline int pthread_cond_broadcast(pthread_cond_t *condition) { return 0; }
static inline int pthread_create(pthread_t *thread, const pthread_attr_t *how,
                                 void *(*start)(void *), void *argument) { return 11; }
static inline int pthread_join(pthread_t thread, void **result) { return 0; }
#endif
