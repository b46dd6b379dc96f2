// Puts new tokens behind cached ones, in words of W. A block has one head of a cache; where the result is not the cache itself,
// it copies that first.

DEVICE void append_tokens(const W *cache, const W *tokens, W *out, int cached, int added, int slots, int words) {
    int last = added < LENGTH ? added : LENGTH, first = last > slots ? last - slots : 0;
    if (cache != out) {
        for (int at = threadIdx.x; at < slots * words; at += THREADS) out[at] = cache[at];
        sync_block();
    }
    for (int at = threadIdx.x; at < (last - first) * words; at += THREADS) {
        int token = first + at / words, word = at % words;
        out[(i64)((cached + token) % slots) * words + word] = tokens[(i64)token * words + word];
    }
}
