// Helpers for vectors of any type.

/// has_builtin -- for compilers without it
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif

/// stream_end
/* cells that went past the caches have arrived */
INLINE void stream_end(void) {
#ifdef __SSE__
  __builtin_ia32_sfence();
#endif
}
