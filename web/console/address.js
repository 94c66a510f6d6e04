// Where one is: #/config/key?namespace=shop. The namespace stays on the way from part to part, and through a reload.

/** Read the address: the words of the way, and the namespace (null: the default one). */
export function address() {
  const [way, search = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return { words: way.split('/').map(decodeURIComponent), namespace: new URLSearchParams(search).get('namespace') || null };
}

/** Write the address of these words, in the namespace where one is unless another is named. */
export function to(words, namespace = address().namespace) {
  const way = `#/${words.map(encodeURIComponent).join('/')}`;
  return namespace && namespace !== 'default' ? `${way}?${new URLSearchParams({ namespace })}` : way;
}

/** Go there. */
export function visit(words, namespace) {
  location.hash = to(words, namespace);
}
